// What the engine does, in six tiles.

import { $, el, meter, redraw } from "./draw.js";
import { brief, figure, percent } from "./format.js";
import { t } from "./words.js";

export function show(status) {
  const figures = status.figures;
  const seen = { ...figures, age_s: 0, interval_s: 0, totals: 0, memory: 0 };
  redraw($("tiles"), [seen, status.reported.kv_tokens, t("figures")], () => {
    const rates = figures.per_s ?? {};
    return [
      tile("generated", figure(rates.generation_tokens), t("tokens-s"),
        known(rates.prompt_tokens, `${figure(rates.prompt_tokens)} ${t("tokens-s")} ${t("of-prompts")}`)),
      tile("requests", figure(figures.running, 0), t("running"),
        known(figures.waiting, t("n-waiting", { n: figure(figures.waiting, 0) })), { alert: figures.waiting > 0 }),
      cache(figures, status.reported.kv_tokens),
      time("first-token", figures.first_token_s),
      time("per-token", figures.token_s),
      drafts(figures.drafting),
    ];
  });
}

const known = (value, text) => (value === null || value === undefined ? "" : text);

function tile(name, value, unit, below, { alert = false, more = null } = {}) {
  const number = el("p", { class: "number" }, el("b", {}, value), unit && value !== "–" ? el("span", {}, unit) : "");
  return el("div", { class: "panel tile", data: { tile: name } }, el("h3", {}, t(name)), number,
    more, el("p", { class: alert ? "below alert" : "below" }, below));
}

function cache(figures, tokens) {
  const usage = figures.kv_cache_usage;
  const words = [];
  if (tokens) words.push(t("kv-tokens", { n: figure(tokens, 0) }));
  if (figures.prefix_hits !== null) words.push(t("prefix-hits", { share: percent(figures.prefix_hits) }));
  const more = meter(usage ?? 0, usage > 0.9 ? "full" : "");
  return tile("kv-cache", usage === null ? "–" : figure(usage * 100, 0), "%",
    words.map((one) => one.replaceAll(" ", "\u00a0")).join(" · "), { more });
}

function time(name, { p50, p99 }) {
  const [value, unit] = brief(p50);
  return tile(name, value, unit, known(p99, t("within", { time: brief(p99).join(" ") })));
}

function drafts(drafting) {
  if (!drafting) return tile("drafts", "–", "", t("no-drafts"));
  const bars = drafting.accepted.map((share, index) => {
    const fill = el("i");
    fill.style.blockSize = `${Math.max(share * 100, 2)}%`;
    const words = t("by-position", { n: index + 1, share: percent(share) });
    return el("li", {}, el("span", { class: "column", "aria-hidden": "true", title: words }, fill),
      el("span", { class: "share" }, percent(share)));
  });
  const made = tile("drafts", "", "", t("tokens-per-step", { n: figure(drafting.tokens_per_step, 2) }));
  made.querySelector(".number").replaceWith(el("ol", { class: "positions" }, ...bars));
  return made;
}
