// SPDX-License-Identifier: Apache-2.0
// What people do with openai-node: `node openai_client.mjs URL [BUSY_URL]`. With BUSY_URL, a server that takes no more
// requests, the replies of URL are the known ones; without it only streamed and unstreamed replies are compared.
import assert from "node:assert/strict";
import OpenAI from "openai";

const [url, busyUrl] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "any", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const properties = { city: { type: "string" }, days: { type: "integer" } };
const tools = [
  { type: "function", function: { name: "weather", parameters: { type: "object", properties } } },
  { type: "function", function: { name: "time", parameters: { type: "object", properties: {} } } },
];
const ask = (scenario) => [{ role: "user", content: `scenario:${scenario}` }];

async function agree() {
  const body = { model, messages: ask("plain"), temperature: 0, max_tokens: 24 };
  const whole = await client.chat.completions.create(body);
  let text = "";
  let usage = null;
  const stream = await client.chat.completions.create({ ...body, stream: true, stream_options: { include_usage: true } });
  for await (const chunk of stream) {
    const delta = chunk.choices[0]?.delta ?? {};
    text += (delta.reasoning_content ?? "") + (delta.content ?? "");
    usage = chunk.usage ?? usage;
  }
  const message = whole.choices[0].message;
  assert.equal(text, (message.reasoning_content ?? "") + (message.content ?? ""));
  assert.ok(text.length > 0);
  assert.equal(usage.total_tokens, whole.usage.total_tokens);
}

async function functions() {
  const runner = client.chat.completions.stream({ model, messages: ask("calls"), tools });
  const { message, finish_reason: reason } = (await runner.finalChatCompletion()).choices[0];
  assert.equal(reason, "tool_calls");
  assert.equal(message.content, "Let me see.");
  assert.deepEqual(
    message.tool_calls.map((call) => [call.type, call.function.name, JSON.parse(call.function.arguments)]),
    [["function", "weather", { city: "Oslo", days: 2 }], ["function", "time", {}]],
  );
  const results = message.tool_calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: "4" }));
  const history = [...ask("calls"), { role: "assistant", content: null, tool_calls: message.tool_calls }, ...results];
  const answer = await client.chat.completions.create({ model, messages: history, tools });
  assert.equal(answer.choices[0].message.content, "It is 4 degrees.");
  for (const choice of ["required", { type: "function", function: { name: "weather" } }]) {
    const forced = await client.chat.completions.create({ model, messages: ask("eager"), tools, tool_choice: choice });
    assert.equal(JSON.parse(forced.choices[0].message.tool_calls[0].function.arguments).days, 2);
  }
}

async function responses() {
  const flat = tools.map((tool) => ({ type: "function", ...tool.function }));
  const first = await client.responses.stream({ model, input: "scenario:calls", tools: flat }).finalResponse();
  assert.deepEqual(first.output.map((item) => item.type), ["reasoning", "message", "function_call", "function_call"]);
  const input = first.output
    .filter((item) => item.type === "function_call")
    .map((item) => ({ type: "function_call_output", call_id: item.call_id, output: "4" }));
  const second = await client.responses.create({ model, input, tools: flat, previous_response_id: first.id });
  assert.equal(second.output_text, "It is 4 degrees.");
}

async function errors() {
  const long = [{ role: "user", content: "x ".repeat(20_000) }];
  await assert.rejects(client.chat.completions.create({ model, messages: long }), { code: "context_length_exceeded" });
  const unknown = client.chat.completions.create({ model: "other", messages: ask("plain") });
  await assert.rejects(unknown, (error) => error instanceof OpenAI.NotFoundError);
  const broken = await client.chat.completions.create({ model, messages: ask("broken"), stream: true });
  await assert.rejects(Array.fromAsync?.(broken) ?? drained(broken), /rank 1 left/);
  const busy = new OpenAI({ baseURL: `${busyUrl}/v1`, apiKey: "any", maxRetries: 0 });
  const refused = busy.chat.completions.create({ model, messages: ask("plain"), stream: true });
  await assert.rejects(refused, (error) => error instanceof OpenAI.RateLimitError);
}

async function drained(stream) {
  for await (const _ of stream);
}

await agree();
if (busyUrl) {
  await functions();
  await responses();
  await errors();
}
