// The stream of /api/live: it comes back by itself, says whether it is there, and hands on each
// event and each log line once.

const SILENT_MS = 4000; // statuses come each second
const DEAD_MS = 15000; // of an open connection behind which nobody is left
const MAX_WAIT_MS = 8000;
const KINDS = ["status", "recent", "event", "log", "daemon", "cluster", "requests"];

export class Live {
  /** `take(kind, data)` hears of everything, `lost(why)` of a connection that ends, or "" again. */
  constructor(take, lost) {
    this.take = take;
    this.lost = lost;
    this.seen = new Set();
    this.lines = 0;
    this.pid = null;
    this.wait = 500;
    this.heard = performance.now();
    setInterval(() => this.check(), 1000);
  }

  /** Follow `model`, "" for the only one, from now on. */
  open(model = this.model) {
    if (model !== this.model) this.lines = 0;
    this.model = model;
    this.source?.close();
    const query = model ? `?model=${encodeURIComponent(model)}` : "";
    const source = (this.source = new EventSource(`/api/live${query}`));
    this.opened = performance.now();
    for (const kind of KINDS) {
      source.addEventListener(kind, (message) => {
        if (source === this.source) this.hear(kind, JSON.parse(message.data));
      });
    }
    // The browser connects again by itself, with Last-Event-ID, unless the server refused.
    source.addEventListener("error", () => {
      this.lost("lost-page");
      if (source.readyState === EventSource.CLOSED && source === this.source) this.refused();
    });
  }

  hear(kind, data) {
    this.heard = performance.now();
    this.wait = 500;
    this.lost("");
    if (kind === "status") {
      if (data.daemon.pid !== this.pid) this.lines = 0; // another daemon counts from 0
      this.pid = data.daemon.pid;
    }
    if (kind === "event") {
      const name = `${data.seq} ${data.at}`;
      if (this.seen.has(name)) return;
      this.seen.add(name);
    }
    if (kind === "log") {
      if (data.end < this.lines) this.lines = 0;
      const fresh = data.lines.slice(Math.max(this.lines - (data.end - data.lines.length), 0));
      this.lines = data.end;
      if (fresh.length === 0) return;
      data = { lines: fresh };
    }
    this.take(kind, data);
  }

  /** Why the server refused, and another attempt later. */
  async refused() {
    setTimeout(() => this.open(), this.wait);
    this.wait = Math.min(this.wait * 2, MAX_WAIT_MS);
    try {
      const answer = await fetch("/api/incidents", { cache: "no-store" });
      this.lost(answer.status === 401 ? "login-again" : answer.ok ? "many-readers" : "lost-page");
    } catch {
      this.lost("lost-page");
    }
  }

  check() {
    const silent = performance.now() - Math.max(this.heard, this.opened ?? 0);
    if (silent > SILENT_MS) this.lost("lost-page");
    if (silent > DEAD_MS && this.source?.readyState === EventSource.OPEN) this.open();
  }
}
