// Light or dark: the system's choice until the button says otherwise. first_paint.js applies a stored choice before
// anything is drawn.

const KEY = "weft.theme";

export class Theme {
  #button;
  #systemDark = matchMedia("(prefers-color-scheme: dark)");

  constructor(button) {
    this.#button = button;
    button.addEventListener("click", () => this.#flip());
    this.#systemDark.addEventListener("change", () => this.#label());
    this.#label();
  }

  get #current() {
    return document.documentElement.dataset.theme ?? (this.#systemDark.matches ? "dark" : "light");
  }

  /** Back to what the system says means following it again. */
  #flip() {
    const next = this.#current === "dark" ? "light" : "dark";
    if (next === (this.#systemDark.matches ? "dark" : "light")) {
      delete document.documentElement.dataset.theme;
      localStorage.removeItem(KEY);
    } else {
      document.documentElement.dataset.theme = next;
      localStorage.setItem(KEY, next);
    }
    this.#label();
  }

  #label() {
    const other = this.#current === "dark" ? "light" : "dark";
    this.#button.setAttribute("aria-label", `Switch to the ${other} theme`);
    this.#button.title = `Switch to the ${other} theme`;
    this.#button.querySelector("use").setAttribute("href", other === "light" ? "#icon-sun" : "#icon-moon");
  }
}
