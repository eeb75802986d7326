// Runs before the first paint, so that a chosen theme does not flash; display.js does the rest.
try {
  document.documentElement.dataset.theme = localStorage.getItem("theme") ?? "auto";
} catch {
  document.documentElement.dataset.theme = "auto"; // this browser keeps nothing
}
