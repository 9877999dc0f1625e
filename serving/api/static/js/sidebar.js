// The sidebar: a column beside the chat on a wide window, a drawer over it on a narrow one.

export class Sidebar {
  #sidebar;
  #main;
  #toggle;
  #narrow = matchMedia("(max-width: 52rem)");
  #open = true;

  constructor({ sidebar, main, toggle, backdrop, close }) {
    this.#sidebar = sidebar;
    this.#main = main;
    this.#toggle = toggle;
    toggle.addEventListener("click", () => this.#set(!this.#open));
    close.addEventListener("click", () => this.#set(false));
    backdrop.addEventListener("click", () => this.#set(false));
    this.#narrow.addEventListener("change", () => this.#reset());
    this.#reset();
  }

  /** Closes the drawer and gives the focus back; true where there was one to close. */
  closeDrawer() {
    if (!this.#narrow.matches || !this.#open) return false;
    this.#set(false);
    return true;
  }

  #reset() {
    this.#open = !this.#narrow.matches;
    this.#apply();
  }

  #set(open) {
    this.#open = open;
    this.#apply();
    if (!open) this.#toggle.focus();
    else if (this.#narrow.matches) this.#sidebar.querySelector("button").focus();
  }

  #apply() {
    document.body.classList.toggle("sidebar-open", this.#open);
    this.#toggle.setAttribute("aria-expanded", String(this.#open));
    this.#sidebar.inert = !this.#open;
    this.#main.inert = this.#open && this.#narrow.matches;
  }
}
