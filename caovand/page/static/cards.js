// A bar for each card by part of its memory, and what the card does.

import { $, el, icon, redraw } from "./draw.js";
import { figure, gib } from "./format.js";
import { t } from "./words.js";

export function show(status) {
  const memory = new Map(status.figures.memory.map((card) => [card.gpu, card]));
  const seen = status.gpus.map((gpu) => [{ ...gpu, at: 0, energy_j: 0, nvlink_sent_bytes: 0,
    nvlink_received_bytes: 0 }, memory.get(gpu.index)]);
  redraw($("card-list"), [seen, t("cards")], () => {
    if (status.gpus.length === 0) return el("p", { class: "nothing" }, t("no-cards"));
    const sizes = status.gpus.map((gpu) => (gpu.fault ? {} : shares(gpu, memory.get(gpu.index))));
    return [...status.gpus.map((gpu, index) => card(gpu, sizes[index])), legend(sizes)];
  });
}

/** A card's memory by part, in MiB: never more in use than the driver reports. */
export function shares(gpu, memory) {
  const used = gpu.used_mib;
  const free = Math.max(gpu.total_mib - used, 0);
  if (!memory || memory.engine_mib === null) return { used, free };
  const engine = Math.min(memory.engine_mib, used);
  const sizes = {};
  let left = engine;
  for (const [name, part] of Object.entries(memory.parts)) {
    sizes[name] = Math.min(part.mib, left);
    left -= sizes[name];
  }
  return { ...sizes, engine: left, others: used - engine, free };
}

function card(gpu, sizes) {
  const name = el("h3", {}, t("card", { n: gpu.index }));
  if (gpu.fault) {
    return el("div", { class: "card" }, name, el("p", { class: "fault" }, icon("failed"), gpu.fault));
  }
  const bar = el("div", { class: "stack", role: "img" });
  const words = [];
  for (const [part, mib] of Object.entries(sizes)) {
    if (mib < 1) continue;
    const text = `${t(`part-${part}`) || part} ${gib(mib)}`;
    const segment = el("i", { class: `part-${part}`, title: `${text} GiB` });
    segment.style.flexGrow = mib;
    bar.append(segment);
    words.push(text);
  }
  bar.setAttribute("aria-label", t("bar-of", { n: gpu.index, parts: words.join(", ") }));
  const used = t("memory-of", { used: gib(gpu.used_mib), total: gib(gpu.total_mib) });
  return el("div", { class: "card", data: { gpu: gpu.index } }, name,
    el("div", { class: "memory" }, bar, el("span", { class: "used" }, used)), readings(gpu));
}

function readings(gpu) {
  const found = [];
  const reading = (name, text, more = "") =>
    found.push(el("div", {}, el("dt", {}, t(name)), el("dd", {}, text, more && el("small", {}, more))));
  if (gpu.utilization !== null) reading("load", `${figure(gpu.utilization, 0)} %`);
  if (gpu.temperature !== null) reading("temperature", `${figure(gpu.temperature, 0)} °C`);
  if (gpu.power_w !== null) {
    const limit = gpu.power_limit_w ? t("of-limit", { limit: figure(gpu.power_limit_w, 0) }) : "";
    reading("power", `${figure(gpu.power_w, 0)} W`, limit);
  }
  if (gpu.sm_clock_mhz !== null && gpu.sm_clock_mhz !== undefined) {
    const memory = gpu.memory_clock_mhz ? t("memory-clock", { mhz: figure(gpu.memory_clock_mhz, 0) }) : "";
    reading("clocks", `${figure(gpu.sm_clock_mhz, 0)} MHz`, memory);
  }
  if (gpu.throttled) {
    found.push(el("div", { class: "throttled" }, el("dt", {}, icon("warning"), t("throttled")),
      el("dd", {}, gpu.throttled)));
  }
  return el("dl", { class: "readings" }, ...found);
}

function legend(sizes) {
  const names = [...new Set(sizes.flatMap((one) => Object.keys(one).filter((name) => one[name] >= 1)))];
  const entries = names.map((name) => {
    const most = Math.max(...sizes.map((one) => one[name] ?? 0));
    return el("li", {}, el("i", { class: `part-${name}` }), t(`part-${name}`) || name,
      el("b", {}, gib(most)));
  });
  return el("ul", { class: "legend" }, ...entries, el("li", { class: "unit" }, "GiB"));
}
