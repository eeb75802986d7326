// Every sentence of the page in its languages. What the daemon and the engine say stays as it is.

import { failures } from "./failures.zh.js";
import { english } from "./words.en.js";
import { chinese } from "./words.zh.js";

const LANGUAGES = { en: english, "zh-CN": chinese };
const NEXT = { en: "zh-CN", "zh-CN": "en" };

let chosen = kept() ?? (navigator.language.toLowerCase().startsWith("zh") ? "zh-CN" : "en");

function kept() {
  try {
    const found = localStorage.getItem("language");
    return found in LANGUAGES ? found : null;
  } catch {
    return null;
  }
}

export const language = () => chosen;
export const other = () => NEXT[chosen];

export function choose(name) {
  chosen = name;
  try {
    localStorage.setItem("language", name);
  } catch {
    // this browser keeps nothing: the choice lasts as long as the page
  }
}

/** The text of `key`, with `{name}` replaced by values; "" where there is none. */
export function t(key, values = {}) {
  const text = LANGUAGES[chosen][key] ?? "";
  return text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
}

/** What a failure means and what to do about it; [] in English, which the daemon's own text is in. */
export function explained(failure) {
  if (chosen === "en") return [];
  const [cause, remedy] = failures[failure] ?? [];
  return [cause, remedy && t("remedy", { text: remedy })].filter(Boolean);
}

/** Fill in the texts that stand in index.html. */
export function translate() {
  document.documentElement.lang = chosen;
  for (const place of document.querySelectorAll("[data-t]")) place.textContent = t(place.dataset.t);
  for (const place of document.querySelectorAll("[data-t-label]")) {
    place.setAttribute("aria-label", t(place.dataset.tLabel));
  }
}
