// The message box: a textarea that grows, one button that sends or stops, and a banner while a message is edited.

const TALLEST = 0.4; // of the window

/** Emits "send" with the text as detail, "stop", "editlast" (arrow up in an empty box) and "cancel" (of an edit). */
export class Composer extends EventTarget {
  #form;
  #box;
  #button;
  #banner;
  #answering = false;
  #edited = null;
  #touch = matchMedia("(pointer: coarse) and (hover: none)");

  constructor(form) {
    super();
    this.#form = form;
    this.#box = form.querySelector("textarea");
    this.#button = form.querySelector("[type=submit]");
    this.#banner = form.querySelector(".editing");
    this.#box.addEventListener("input", () => this.#refresh());
    this.#box.addEventListener("keydown", (event) => this.#keydown(event));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#answering) this.#emit("stop");
      else this.#send();
    });
    this.#banner.querySelector("button").addEventListener("click", () => this.#emit("cancel"));
    addEventListener("resize", () => this.#fit());
    this.#refresh();
  }

  /** The message that is being edited, or null. */
  get edited() {
    return this.#edited;
  }

  set answering(answering) {
    this.#answering = answering;
    this.#refresh();
  }

  edit(message) {
    this.#edited = message;
    this.#banner.hidden = false;
    this.#fill(message.content);
    this.#box.focus();
  }

  clear() {
    this.#edited = null;
    this.#banner.hidden = true;
    this.#fill("");
  }

  /** Not on a phone: its keyboard would cover half the page that the reader just asked for. */
  focus() {
    if (!this.#touch.matches) this.#box.focus();
  }

  #fill(text) {
    this.#box.value = text;
    this.#refresh();
  }

  #send() {
    const text = this.#box.value.trim();
    if (text) this.dispatchEvent(new CustomEvent("send", { detail: text }));
  }

  #keydown(event) {
    if (event.isComposing) return; // Enter picks a candidate of an input method
    // On a phone Enter is the only way to a new line, and the button is under the thumb.
    if (event.key === "Enter" && !event.shiftKey && !this.#touch.matches) {
      event.preventDefault();
      if (!this.#answering) this.#send();
    } else if (event.key === "ArrowUp" && this.#box.value === "" && !this.#answering) {
      event.preventDefault();
      this.#emit("editlast");
    }
  }

  #emit(name) {
    this.dispatchEvent(new Event(name));
  }

  #refresh() {
    const label = this.#answering ? "Stop the answer" : "Send";
    this.#form.classList.toggle("answering", this.#answering);
    this.#button.setAttribute("aria-label", label);
    this.#button.title = this.#answering ? "Stop (Esc)" : "Send (Enter)";
    this.#button.disabled = !this.#answering && this.#box.value.trim() === "";
    this.#button.querySelector("use").setAttribute("href", this.#answering ? "#icon-stop" : "#icon-send");
    this.#fit();
  }

  #fit() {
    this.#box.style.height = "auto";
    this.#box.style.height = `${Math.min(this.#box.scrollHeight, innerHeight * TALLEST)}px`;
  }
}
