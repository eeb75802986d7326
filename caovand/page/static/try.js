// A prompt for the model: the answer as it comes, and how fast it came.

import { $, el, icon } from "./draw.js";
import { brief, figure } from "./format.js";
import { Refused, problemText, refusal } from "./ask.js";
import { t } from "./words.js";

const LENGTHS = [64, 256, 1024];
const MAX_CHARACTERS = 32000;
const form = $("try-form");
const parts = {};
let stop = null;
let target = "";
let serves = false;
let chats = true;

export function build() {
  const kept = parts.prompt?.value ?? "";
  const shown = parts.answer;
  parts.prompt = el("textarea", { id: "prompt", rows: 3, maxLength: MAX_CHARACTERS, value: kept, placeholder: t("prompt-hint") });
  parts.longest = el("select", { id: "longest" },
    ...LENGTHS.map((n) => el("option", { value: n, selected: n === 256 }, `${figure(n, 0)} ${t("tokens")}`)));
  parts.send = el("button", { type: "submit", class: "primary" });
  parts.note = el("p", { class: "below", role: "status" });
  parts.answer = shown ?? el("div", { class: "answer scrolls", tabIndex: 0, role: "region", hidden: true });
  parts.answer.setAttribute("aria-label", t("answer"));
  form.replaceChildren(
    el("label", { htmlFor: "prompt", class: "read" }, t("prompt")), parts.prompt,
    el("div", { class: "try-line" },
      el("label", { htmlFor: "longest" }, t("longest")), parts.longest, parts.note, parts.send),
    parts.answer);
  parts.prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  allow();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (stop) stop.abort();
  else if (serves && parts.prompt.value.trim()) send(parts.prompt.value);
});

export function show(status) {
  target = status.served?.name ?? "";
  chats = (status.task ?? "generate") === "generate";
  serves = status.state === "SERVING" && chats;
  allow();
}

let slot = "";
export function choose(model) {
  slot = model;
}

function allow() {
  parts.send.textContent = t(stop ? "stop" : "send");
  parts.send.disabled = !serves && !stop;
  parts.note.setAttribute("aria-busy", String(Boolean(stop))); // read out once, at the end
  const why = t(chats ? "not-serving" : "no-text");
  if (!serves && !stop) parts.note.textContent = why;
  else if ([t("not-serving"), t("no-text")].includes(parts.note.textContent)) parts.note.textContent = "";
}

async function send(prompt) {
  stop = new AbortController();
  allow();
  const body = { prompt, max_tokens: Number(parts.longest.value), ...(slot ? { model: slot } : {}) };
  const begun = performance.now();
  const run = { first: null, count: 0, usage: null };
  const [thought, said] = [el("p", { class: "thought" }), el("p", { class: "said" })];
  parts.answer.hidden = false;
  parts.answer.replaceChildren(thought, said);
  parts.note.textContent = t("try-waits");
  try {
    const answer = await fetch("/api/try", {
      method: "POST", headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body), signal: stop.signal,
    });
    if (!answer.ok) throw await refusal(answer);
    for await (const chunk of chunks(answer.body)) {
      if (chunk.error) throw new Refused(answer.status, chunk.error);
      const delta = chunk.choices?.[0]?.delta ?? {};
      const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
      const content = delta.content ?? "";
      if (content || reasoning) {
        run.first ??= performance.now();
        run.count += 1;
        thought.append(reasoning);
        said.append(content);
        parts.answer.scrollTop = parts.answer.scrollHeight;
        run.last = performance.now();
      }
      run.usage = chunk.usage ?? run.usage;
      if (run.first) parts.note.textContent = words(run, begun);
    }
    parts.note.textContent = run.first ? words(run, begun) : t("no-answer");
  } catch (problem) {
    const said = problem.name === "AbortError" ? t("stopped") : problemText(problem);
    parts.note.textContent = run.first ? `${words(run, begun)} · ${said}` : said;
  } finally {
    stop = null;
    allow();
  }
}

function words(run, begun) {
  const count = run.usage?.completion_tokens ?? run.count;
  const seconds = (run.last - run.first) / 1000;
  const rate = count > 1 && seconds > 0 ? (count - 1) / seconds : null;
  return t("try-figures", {
    first: brief((run.first - begun) / 1000).join(" "), rate: figure(rate), count: figure(count, 0),
  });
}

/** The JSON documents of a stream of server-sent events. */
async function* chunks(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const data = line.startsWith("data:") ? line.slice(5).trim() : "";
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}
