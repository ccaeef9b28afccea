// SPDX-License-Identifier: Apache-2.0
// What people do with the AI SDK over each of its providers: `node ai_sdk.mjs URL [BUSY_URL]`. With BUSY_URL, a server
// that takes no more requests, the replies of URL are the known ones; without it only that both ways agree is checked.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false;
const [url, busyUrl] = process.argv.slice(2);
const served = (await (await fetch(`${url}/v1/models`)).json()).data[0].id;

const providers = (base) => ({
  chat: createOpenAICompatible({ name: "spark", baseURL: `${base}/v1`, apiKey: "any", includeUsage: true })(served),
  responses: createOpenAI({ baseURL: `${base}/v1`, apiKey: "any" }).responses(served),
  messages: createAnthropic({ baseURL: `${base}/v1`, apiKey: "any" })(served),
});

const tools = {
  weather: tool({
    inputSchema: z.object({ city: z.string(), days: z.number().int() }),
    execute: async (input) => `${JSON.stringify(input)} is cold`,
  }),
  time: tool({ inputSchema: z.object({}), execute: async () => "noon" }),
};

async function told(options) {
  const result = streamText({ maxRetries: 0, onError: () => {}, ...options });
  const parts = [];
  for await (const part of result.fullStream) parts.push(part);
  return { result, parts };
}

async function agree(model) {
  const options = { model, prompt: "scenario:plain", temperature: 0, maxOutputTokens: 24, maxRetries: 0 };
  const whole = await generateText(options);
  const { result } = await told(options);
  assert.equal(await result.text, whole.text);
  assert.equal(await result.reasoningText, whole.reasoningText);
  assert.equal(await result.finishReason, whole.finishReason);
  assert.equal((await result.usage).totalTokens, whole.usage.totalTokens);
  return whole;
}

async function check(name, model) {
  const whole = await agree(model);
  assert.equal(whole.text, "Oslo, ď삼👋.");
  if (name === "chat") assert.equal(whole.reasoningText, "Need data. ");
  assert.equal(whole.usage.inputTokenDetails.cacheReadTokens, 5);
  const turns = { model, tools, prompt: "scenario:calls", stopWhen: stepCountIs(2), maxRetries: 0 };
  for (const run of [await generateText(turns), (await told(turns)).result]) {
    const steps = await run.steps;
    assert.deepEqual(
      steps[0].toolCalls.map((call) => [call.toolName, call.input]),
      [["weather", { city: "Oslo", days: 2 }], ["time", {}]],
    );
    assert.equal(steps[0].finishReason, "tool-calls");
    assert.equal(steps[1].text, "It is 4 degrees.");
  }
  const forced = await generateText({
    model, tools, prompt: "scenario:eager", toolChoice: { type: "tool", toolName: "weather" }, maxRetries: 0,
  });
  assert.deepEqual(forced.toolCalls[0].input, { city: "Oslo", days: 2 });
  const { parts } = await told({ model, prompt: "scenario:broken" });
  const failure = parts.find((part) => part.type === "error");
  assert.match(String(failure.error.message ?? JSON.stringify(failure.error)), /rank 1 left/);
  await assert.rejects(generateText({ model, prompt: "x ".repeat(20_000), maxRetries: 0 }), (error) => {
    assert.ok(APICallError.isInstance(error));
    assert.equal(error.statusCode, 400);
    return /context_length_exceeded|prompt is too long/.test(error.responseBody);
  });
}

for (const [name, model] of Object.entries(providers(url))) {
  await (busyUrl ? check(name, model) : agree(model));
}
if (busyUrl) {
  for (const model of Object.values(providers(busyUrl))) {
    await assert.rejects(generateText({ model, prompt: "Hi", maxRetries: 0 }), { statusCode: 429 });
  }
}
