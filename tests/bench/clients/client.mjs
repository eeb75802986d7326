// The same as client.py, for the openai library of Node.
import OpenAI from "openai";

const [url, model, count] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}v1`, apiKey: "none", timeout: 300_000 });
const pause = () => new Promise((go) => setTimeout(go, 200));
let stop = false;
process.stdin.on("end", () => { stop = true; }).resume();

async function work(thread) {
  for (let number = 1; !stop; number++) {
    await pause();
    const row = { library: "node openai", began: Date.now() / 1000, text: "", end: "",
      begun: false };
    const messages = [{ role: "user", content: `node ${process.pid} ${thread} ${number}` }];
    try {
      const stream = await client.chat.completions.create(
        { model, messages, stream: true, max_tokens: 100, temperature: 0 });
      for await (const chunk of stream) {
        row.begun = true;
        for (const choice of chunk.choices) {
          row.text += choice.delta.content ?? "";
          row.end = choice.finish_reason ?? row.end;
        }
      }
    } catch (problem) {
      const ours = problem instanceof OpenAI.OpenAIError;
      row.error = `${ours ? "openai" : "node"}.${problem.constructor.name}`;
      row.says = String(problem.message).slice(0, 300);
    }
    row.ended = Date.now() / 1000;
    console.log(JSON.stringify(row));
  }
}

for (let thread = 0; thread < Number(count); thread++) work(thread);
