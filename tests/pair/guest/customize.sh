#!/bin/sh
# Makes a Spark of a fresh Debian: an account with keys, the services that a Spark has, and none that would only cost time.
# $1 is the root of the file system, $2 the directory with the files to put over it, $3 the one with the keys.
set -eu
root=$1 tree=$2 keys=$3
cp -r --no-preserve=ownership "$tree/." "$root/"
chmod 0440 "$root/etc/sudoers.d/spark"
chroot "$root" useradd --create-home --password "*" --shell /bin/bash --groups sudo,docker spark
install -d -m 0700 -o 1000 -g 1000 "$root/home/spark/.ssh"
for name in id_ed25519 authorized_keys known_hosts; do
    install -m 0600 -o 1000 -g 1000 "$keys/$name" "$root/home/spark/.ssh/$name"
done
rm -f "$root"/etc/ssh/ssh_host_*
install -m 0600 "$keys/host" "$root/etc/ssh/ssh_host_ed25519_key"
install -m 0644 "$keys/host.pub" "$root/etc/ssh/ssh_host_ed25519_key.pub"
rm -f "$root/etc/hostname" "$root/etc/machine-id"
touch "$root/etc/machine-id"
chroot "$root" systemctl enable --quiet ssh docker systemd-networkd spark-ports pair-is-up pair-python
chroot "$root" python3 -m compileall -q /usr/local/lib/pair
# The role starts the NFS server where a play asks for it.
chroot "$root" systemctl disable --quiet nfs-server
chroot "$root" systemctl mask --quiet systemd-networkd-wait-online apt-daily.timer apt-daily-upgrade.timer \
    systemd-timesyncd e2scrub_reap.service e2scrub_all.timer fstrim.timer dpkg-db-backup.timer systemd-pstore \
    systemd-logind getty@tty1 serial-getty@ttyS0 rpc-statd-notify
# What nothing here asks for, or starts by itself when something does.
chroot "$root" systemctl disable --quiet nfs-client.target nfs-blkmap rpcbind.service rpcbind.socket
chroot "$root" systemctl mask --quiet modprobe@.service sys-kernel-config.mount sys-kernel-debug.mount \
    sys-kernel-tracing.mount sys-fs-fuse-connections.mount dev-hugepages.mount dev-mqueue.mount systemd-binfmt \
    proc-sys-fs-binfmt_misc.automount kmod-static-nodes systemd-random-seed systemd-update-utmp \
    systemd-update-utmp-runlevel systemd-network-generator systemd-sysusers systemd-journal-flush \
    rdma-ndd rdma-load-modules@.service
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/doc "$root"/usr/share/man
