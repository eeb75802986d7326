// How the page looks and which language it speaks: two buttons, and what they remember.

import { $, icon } from "./draw.js";
import { choose, other, t, translate } from "./words.js";

const NEXT = { auto: "light", light: "dark", dark: "auto" };
const root = document.documentElement;

/** `again` draws everything anew. */
export function begin(again) {
  $("theme").addEventListener("click", () => {
    root.dataset.theme = NEXT[root.dataset.theme] ?? "auto";
    try {
      localStorage.setItem("theme", root.dataset.theme);
    } catch {
      // this browser keeps nothing: the choice lasts as long as the page
    }
    label();
    again();
  });
  $("language").addEventListener("click", () => {
    choose(other());
    label();
    again();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  label();
}

function label() {
  translate();
  const theme = root.dataset.theme in NEXT ? root.dataset.theme : "auto";
  const words = t(`theme-${theme}`);
  $("theme").replaceChildren(icon(theme));
  $("theme").title = words;
  $("theme").setAttribute("aria-label", words);
  $("language").textContent = t("other-language");
  $("language").lang = other();
}
