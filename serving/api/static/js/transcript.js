// The messages of the conversation that is open. Draws at most once per frame, and only what changed; keeps the newest
// line in view while the reader is at the bottom, and leaves them alone when they are not.

import { pathOf, versionsOf } from "./branches.js";
import { viewOf } from "./message_view.js";
import { wordsOfQueue } from "./notices.js";

const AT_BOTTOM = 40; // pixels

export class Transcript {
  #scroller;
  #list;
  #jump;
  #announcer;
  #files;
  #views = new WeakMap();
  #conversation = null;
  #path = []; // of its messages, those that are shown
  #marked = null;
  #turn = null;
  #spoken = 0;
  #spokenQueue = null;
  #frame = null;
  #pinned = true;

  /** `onaction(name, message, button)` is called for the buttons of a message; `files` has what programs wrote. */
  constructor({ scroller, list, jump, announcer, files, onaction }) {
    this.#scroller = scroller;
    this.#list = list;
    this.#jump = jump;
    this.#announcer = announcer;
    this.#files = files;
    scroller.addEventListener("scroll", () => this.#noticeScroll(), { passive: true });
    // Growth of the text, late layout of off-screen messages, the phone's keyboard: all end up here.
    const observer = new ResizeObserver(() => (this.#pinned ? this.#toBottom() : this.#noticeScroll()));
    observer.observe(list);
    observer.observe(scroller);
    jump.addEventListener("click", () => this.scrollToLatest());
    list.addEventListener("click", (event) => {
      const button = event.target.closest("[data-action], .copy-code");
      if (!button) return;
      const index = [...list.children].indexOf(button.closest(".message"));
      onaction(button.dataset.action ?? "copy-code", this.#path[index], button);
    });
  }

  /** `turn` is the answer on its way in this conversation, or null. */
  show(conversation, turn) {
    const switched = this.#conversation !== conversation;
    this.#conversation = conversation;
    if (this.#turn !== turn) this.#spoken = 0;
    this.#turn = turn;
    if (switched) this.#pinned = true;
    this.#draw();
    if (this.#pinned) this.#toBottom();
  }

  /** The running answer grew: draw it in the next frame. */
  schedule() {
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = null;
      if (!this.#turn) return;
      this.#updateView(this.#turn.answer);
      this.#speakQueue(this.#turn.queue);
      this.#speak(false);
    });
  }

  /** Draws the end of the running answer and reads out what is left of it. */
  finish() {
    this.#draw();
    this.#speak(true);
    for (const { text } of this.#turn?.answer.notices ?? []) this.#announcer.say(text);
    this.#turn = null;
    this.#draw();
  }

  /** Points out the message that is being edited; null: none is. */
  mark(message) {
    for (const [shown, on] of [[this.#marked, false], [message, true]]) {
      if (shown) this.#viewFor(shown).node.classList.toggle("marked", on);
    }
    this.#marked = message;
  }

  focusOn(message, action) {
    this.#viewFor(message).node.querySelector(`[data-action="${action}"]`)?.focus();
  }

  /** Another version, `step` away, took this message's place: it stands where that one stood, and so does the focus. */
  switchTo(before, after, step) {
    const { top } = this.#viewFor(before).node.getBoundingClientRect();
    this.#pinned = false;
    this.#draw();
    const { node } = this.#viewFor(after);
    this.#scroller.scrollTop += node.getBoundingClientRect().top - top;
    node.querySelector(`.versions [data-step="${step}"]`)?.focus({ preventScroll: true });
    this.#noticeScroll();
  }

  scrollToLatest() {
    this.#pinned = true;
    this.#toBottom();
  }

  #draw() {
    this.#path = this.#conversation ? pathOf(this.#conversation) : [];
    this.#path.forEach((message, index) => {
      const { node } = this.#viewFor(message);
      if (this.#list.children[index] !== node) this.#list.insertBefore(node, this.#list.children[index] ?? null);
      this.#updateView(message);
    });
    while (this.#list.children.length > this.#path.length) this.#list.lastElementChild.remove();
  }

  #viewFor(message) {
    if (!this.#views.has(message)) this.#views.set(message, viewOf(message, this.#files));
    return this.#views.get(message);
  }

  #updateView(message) {
    const versions = versionsOf(this.#conversation, message);
    this.#viewFor(message).update({
      isLast: this.#path.at(-1) === message,
      busy: this.#turn !== null,
      streaming: this.#turn?.answer === message,
      queue: this.#turn?.queue,
      version: versions.indexOf(message),
      versions: versions.length,
    });
  }

  /** The place when it changes; the seconds change all the time. */
  #speakQueue(queue) {
    if (queue && queue.before !== this.#spokenQueue) this.#announcer.say(wordsOfQueue(queue));
    this.#spokenQueue = queue?.before ?? null;
  }

  /** Whole blocks only: a screen reader that is told every token says nothing useful. */
  #speak(finished) {
    if (!this.#turn) return;
    const { prose } = this.#viewFor(this.#turn.answer);
    const whole = finished ? prose.blockCount : prose.blockCount - 1;
    for (; this.#spoken < whole; this.#spoken += 1) this.#announcer.say(prose.spokenBlock(this.#spoken));
  }

  #noticeScroll() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    this.#pinned = scrollHeight - scrollTop - clientHeight <= AT_BOTTOM;
    this.#jump.hidden = this.#pinned;
  }

  #toBottom() {
    const empty = this.#list.children.length === 0; // the welcome is read from its top
    this.#scroller.scrollTop = empty ? 0 : this.#scroller.scrollHeight;
    this.#jump.hidden = true;
  }
}
