/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints where the fields of libibverbs' structures are, as `verbs_layout.json` has it. Run it anew, where libibverbs-dev
 * and a compiler are, when verbs_abi.py begins to use another field:
 *
 *     cc verbs_layout.c -o layout && ./layout > verbs_layout.json
 */
#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdio.h>

#define SIZE(type) printf(",\n  \"%s\": %zu", #type, sizeof(struct type))
#define FIELD(type, field) printf(",\n  \"%s.%s\": %zu", #type, #field, offsetof(struct type, field))
#define VALUE(name) printf(",\n  \"%s\": %d", #name, (int)name)

int main(void)
{
    printf("{\n  \"pointer\": %zu", sizeof(void *));
    FIELD(ibv_context, ops);
    FIELD(ibv_context, async_fd);
    FIELD(ibv_context_ops, poll_cq);
    FIELD(ibv_context_ops, req_notify_cq);
    FIELD(ibv_context_ops, post_send);
    FIELD(ibv_context_ops, post_recv);
    SIZE(ibv_port_attr);
    FIELD(ibv_port_attr, state);
    FIELD(ibv_port_attr, active_mtu);
    FIELD(ibv_port_attr, link_layer);
    FIELD(ibv_mr, lkey);
    FIELD(ibv_mr, rkey);
    FIELD(ibv_comp_channel, fd);
    FIELD(ibv_qp, qp_num);
    SIZE(ibv_qp_cap);
    SIZE(ibv_qp_init_attr);
    FIELD(ibv_qp_init_attr, cap);
    FIELD(ibv_qp_init_attr, qp_type);
    FIELD(ibv_qp_init_attr, sq_sig_all);
    SIZE(ibv_global_route);
    FIELD(ibv_global_route, sgid_index);
    FIELD(ibv_global_route, hop_limit);
    SIZE(ibv_ah_attr);
    FIELD(ibv_ah_attr, is_global);
    FIELD(ibv_ah_attr, port_num);
    SIZE(ibv_qp_attr);
    FIELD(ibv_qp_attr, path_mtu);
    FIELD(ibv_qp_attr, rq_psn);
    FIELD(ibv_qp_attr, sq_psn);
    FIELD(ibv_qp_attr, dest_qp_num);
    FIELD(ibv_qp_attr, qp_access_flags);
    FIELD(ibv_qp_attr, cap);
    FIELD(ibv_qp_attr, ah_attr);
    FIELD(ibv_qp_attr, pkey_index);
    FIELD(ibv_qp_attr, max_dest_rd_atomic);
    FIELD(ibv_qp_attr, min_rnr_timer);
    FIELD(ibv_qp_attr, port_num);
    FIELD(ibv_qp_attr, timeout);
    FIELD(ibv_qp_attr, retry_cnt);
    FIELD(ibv_qp_attr, rnr_retry);
    SIZE(ibv_sge);
    FIELD(ibv_sge, length);
    FIELD(ibv_sge, lkey);
    SIZE(ibv_send_wr);
    FIELD(ibv_send_wr, sg_list);
    FIELD(ibv_send_wr, num_sge);
    FIELD(ibv_send_wr, opcode);
    FIELD(ibv_send_wr, send_flags);
    FIELD(ibv_send_wr, imm_data);
    printf(",\n  \"ibv_send_wr.remote_addr\": %zu", offsetof(struct ibv_send_wr, wr.rdma.remote_addr));
    printf(",\n  \"ibv_send_wr.rkey\": %zu", offsetof(struct ibv_send_wr, wr.rdma.rkey));
    SIZE(ibv_recv_wr);
    FIELD(ibv_recv_wr, num_sge);
    SIZE(ibv_wc);
    FIELD(ibv_wc, status);
    FIELD(ibv_wc, opcode);
    FIELD(ibv_wc, vendor_err);
    FIELD(ibv_wc, imm_data);
    FIELD(ibv_wc, qp_num);
    VALUE(IBV_QPT_RC);
    VALUE(IBV_WR_RDMA_WRITE_WITH_IMM);
    VALUE(IBV_SEND_SIGNALED);
    VALUE(IBV_WC_SUCCESS);
    VALUE(IBV_WC_RECV);
    VALUE(IBV_ACCESS_LOCAL_WRITE);
    VALUE(IBV_ACCESS_REMOTE_WRITE);
    VALUE(IBV_QPS_INIT);
    VALUE(IBV_QPS_RTR);
    VALUE(IBV_QPS_RTS);
    VALUE(IBV_QP_STATE);
    VALUE(IBV_QP_ACCESS_FLAGS);
    VALUE(IBV_QP_PKEY_INDEX);
    VALUE(IBV_QP_PORT);
    VALUE(IBV_QP_AV);
    VALUE(IBV_QP_PATH_MTU);
    VALUE(IBV_QP_TIMEOUT);
    VALUE(IBV_QP_RETRY_CNT);
    VALUE(IBV_QP_RNR_RETRY);
    VALUE(IBV_QP_RQ_PSN);
    VALUE(IBV_QP_MAX_QP_RD_ATOMIC);
    VALUE(IBV_QP_MIN_RNR_TIMER);
    VALUE(IBV_QP_SQ_PSN);
    VALUE(IBV_QP_MAX_DEST_RD_ATOMIC);
    VALUE(IBV_QP_DEST_QPN);
    printf("\n}\n");
    return 0;
}
