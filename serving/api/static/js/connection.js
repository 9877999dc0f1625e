// Whether the server is there and ready, asked now and then while the page is in view.

const READY_INTERVAL = 20_000; // milliseconds
const WAITING_INTERVAL = 3_000;

const TEXTS = { ready: "Ready", starting: "Starting", offline: "Offline" };

/** Emits "ready" when the server becomes ready. */
export class Connection extends EventTarget {
  #node;
  #api;
  #state = null;
  #timer = null;

  constructor(node, api) {
    super();
    this.#node = node;
    this.#api = api;
    document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(this.#timer) : this.check()));
    addEventListener("online", () => this.check());
    addEventListener("offline", () => this.check());
  }

  async check() {
    clearTimeout(this.#timer);
    const state = await this.#api.readiness();
    clearTimeout(this.#timer);
    if (!document.hidden) {
      this.#timer = setTimeout(() => this.check(), state === "ready" ? READY_INTERVAL : WAITING_INTERVAL);
    }
    if (state === this.#state) return;
    this.#state = state;
    this.#node.dataset.state = state;
    this.#node.querySelector(".state-text").textContent = TEXTS[state];
    this.#node.title = state === "starting" ? "The server answers, its engine is not ready yet" : `Server: ${TEXTS[state]}`;
    if (state === "ready") this.dispatchEvent(new Event("ready"));
  }
}
