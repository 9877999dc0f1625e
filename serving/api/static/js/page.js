// The composition root: builds the parts and lets them talk. The address says which conversation is open (#/c/ID).

import { Announcer } from "./announcer.js";
import { ApiClient, ChatError } from "./api_client.js";
import { Chat } from "./chat.js";
import { ChatApi } from "./chat_api.js";
import { copyText } from "./clipboard.js";
import { Composer } from "./composer.js";
import { Connection } from "./connection.js";
import { ContainerFiles } from "./container_files.js";
import { hiddenMatch, newConversation } from "./conversation.js";
import { ConversationList } from "./conversation_list.js";
import { ConversationStore } from "./conversation_store.js";
import { downloadJson } from "./download.js";
import { FeedbackApi } from "./feedback_api.js";
import { Library } from "./library.js";
import { LibraryApi } from "./library_api.js";
import { Memory } from "./memory.js";
import { MemoryApi } from "./memory_api.js";
import { MemoryDialog } from "./memory_dialog.js";
import { ModelPicker } from "./model_picker.js";
import { PassageDialog } from "./passage_dialog.js";
import { ResponsesApi } from "./responses_api.js";
import { Settings } from "./settings.js";
import { SettingsDialog } from "./settings_dialog.js";
import { listenForShortcuts } from "./shortcuts.js";
import { Sidebar } from "./sidebar.js";
import { Theme } from "./theme.js";
import { Toast } from "./toast.js";
import { ToolPicker } from "./tool_picker.js";
import { Transcript } from "./transcript.js";

const COPIED_MS = 1500;

const byId = (id) => document.getElementById(id);

class Page {
  settings = new Settings();
  store = new ConversationStore();
  client = new ApiClient(() => this.settings.apiKey);
  api = new ChatApi(this.client);
  responses = new ResponsesApi(this.client);
  feedback = new FeedbackApi(this.client);
  announcer = new Announcer(byId("announcements"));
  toast = new Toast(byId("toasts"));
  theme = new Theme(byId("theme"));
  composer = new Composer(byId("composer"));
  picker = new ModelPicker(byId("model"), this.api, this.settings);
  tools = new ToolPicker(byId("tools"), this.responses, this.settings);
  library = new Library({
    list: byId("files"), input: byId("file"), button: byId("attach"), api: new LibraryApi(this.client),
  });
  memory = new Memory(new MemoryApi(this.client));
  memoryDialog = new MemoryDialog(byId("memory"), this.memory);
  passage = new PassageDialog(byId("passage"));
  written = new ContainerFiles(this.client, (text) => this.toast.show(text));
  connection = new Connection(byId("connection"), this.api);
  settingsDialog = new SettingsDialog(byId("settings"), this.settings);
  list = new ConversationList({ root: byId("conversations"), search: byId("search"), store: this.store });
  sidebar = new Sidebar({
    sidebar: byId("sidebar"), main: byId("main"), toggle: byId("sidebar-toggle"), backdrop: byId("backdrop"),
    close: byId("sidebar-close"),
  });
  transcript = new Transcript({
    scroller: byId("scroller"), list: byId("transcript"), jump: byId("jump"), announcer: this.announcer,
    files: this.written,
    onaction: (name, message, button) => this.actOn(name, message, button),
  });
  chat = new Chat({
    apis: { completions: this.api, responses: this.responses }, tools: this.tools, library: this.library,
    memory: this.memory, store: this.store, settings: this.settings, picker: this.picker, composer: this.composer,
    transcript: this.transcript, announcer: this.announcer, welcome: byId("welcome"),
  });

  start() {
    this.listenToParts();
    this.listenToButtons();
    this.refreshSettingsBadge();
    this.refreshMemory();
    this.list.render();
    this.openFromAddress();
    this.chat.resume();
    this.load();
    this.connection.check();
    this.composer.focus();
  }

  listenToParts() {
    const { chat, composer, connection, library, list, settings, store, tools } = this;
    composer.addEventListener("send", ({ detail }) => chat.send(detail));
    composer.addEventListener("stop", () => chat.stop());
    composer.addEventListener("cancel", () => chat.cancelEdit());
    composer.addEventListener("editlast", () => chat.edit());
    chat.addEventListener("open", () => this.showOpenConversation());
    chat.addEventListener("unreachable", () => connection.check());
    list.addEventListener("open", ({ detail }) => this.openFound(detail));
    list.addEventListener("rename", ({ detail }) => store.rename(detail.id, detail.title));
    list.addEventListener("export", ({ detail }) => this.export(store.get(detail)));
    list.addEventListener("delete", ({ detail }) => this.delete(detail));
    store.addEventListener("change", () => {
      chat.followStore();
      this.refreshTitle();
    });
    store.addEventListener("full", () => {
      this.toast.show("The browser's storage is full: this chat will not survive a reload. Delete or export old ones.");
    });
    settings.addEventListener("change", () => this.refreshSettingsBadge());
    this.memory.addEventListener("change", () => this.refreshMemory());
    settings.addEventListener("key", () => this.load());
    connection.addEventListener("ready", () => this.picker.model || this.load());
    tools.addEventListener("loaded", () => {
      byId("attach").hidden = !tools.readsFiles;
      byId("extras").hidden = byId("tools").children.length === 0 && !tools.readsFiles;
    });
    library.addEventListener("change", ({ detail }) => store.get(detail.id) && store.save(detail));
    library.addEventListener("failed", ({ detail }) => this.toast.show(detail));
    addEventListener("hashchange", () => this.openFromAddress());
  }

  listenToButtons() {
    const onclick = (id, action) => byId(id).addEventListener("click", action);
    onclick("new-chat", () => this.newChat());
    onclick("new-chat-top", () => this.newChat());
    onclick("open-settings", () => this.settingsDialog.open());
    onclick("open-memory", () => this.memoryDialog.open());
    onclick("open-memory-settings", () => {
      this.settingsDialog.close();
      this.memoryDialog.open();
    });
    onclick("open-help", () => byId("help").showModal());
    onclick("close-help", () => byId("help").close());
    onclick("export-all", () => downloadJson("weft conversations", this.store.list()));
    onclick("skip", (event) => {
      event.preventDefault(); // the address names the conversation
      byId("message").focus();
    });
    onclick("examples", ({ target }) => {
      const example = target.closest("button");
      if (example) this.chat.send(example.dataset.prompt);
    });
    listenForShortcuts({
      newChat: () => this.newChat(),
      focusBox: () => this.composer.focus(),
      help: () => byId("help").showModal(),
      escape: () => this.escape(),
    });
  }

  load() {
    this.picker.load();
    this.tools.load();
  }

  openFromAddress() {
    const id = /^#\/c\/(.+)$/.exec(location.hash)?.[1];
    this.chat.open(this.store.get(id) ?? newConversation());
  }

  /** Where a search found it by what another branch says, that branch is shown. */
  openFound(id) {
    const words = byId("search").value;
    const conversation = this.store.get(id);
    const hidden = words.trim() && hiddenMatch(conversation, words);
    if (hidden) this.chat.reveal(conversation, hidden);
    this.navigate(id);
  }

  navigate(id) {
    location.hash = `#/c/${id}`;
    this.sidebar.closeDrawer();
    this.composer.focus();
  }

  newChat() {
    if (location.hash) location.hash = "#/";
    this.sidebar.closeDrawer();
    this.composer.focus();
  }

  /** The address follows what is open; a conversation gets its place in it with its first message. */
  showOpenConversation() {
    const { id, messages } = this.chat.conversation;
    if (messages.length > 0) history.replaceState(null, "", `#/c/${id}`);
    this.list.currentId = id;
    this.refreshTitle();
  }

  refreshTitle() {
    const { title } = this.chat.conversation;
    document.title = title ? `${title} · weft` : "weft";
  }

  refreshSettingsBadge() {
    const count = this.settings.changedCount;
    const badge = byId("settings-count");
    badge.hidden = count === 0;
    badge.textContent = count;
    byId("open-settings").setAttribute("aria-label", count === 0 ? "Settings" : `Settings, ${count} changed`);
  }

  refreshMemory() {
    const on = this.memory.user !== null;
    byId("open-memory").hidden = !on;
    byId("kept-where").textContent = on
      ? "The server remembers what you say; conversations stay in this browser."
      : "Your conversations stay in this browser.";
  }

  escape() {
    if (this.sidebar.closeDrawer()) return;
    if (this.composer.edited) {
      this.chat.cancelEdit();
      return;
    }
    this.chat.stop();
    this.composer.focus();
  }

  async actOn(name, message, button) {
    if (name === "edit") {
      this.chat.edit(message);
    } else if (name === "version") {
      this.chat.switchVersion(message, Number(button.dataset.step));
    } else if (name === "regenerate") {
      this.composer.focus(); // the button that had the focus goes
      await this.chat.regenerate(message);
    } else if (name === "memory") {
      await this.memoryDialog.open();
    } else if (name === "rate") {
      await this.rate(message, button.dataset.rating);
    } else if (name === "cite") {
      this.passage.open(message.citations[Number(button.dataset.index)]);
    } else if (name === "save") {
      await this.saveWritten(message, button.dataset.file);
    } else {
      const code = button.closest(".code-block")?.querySelector("code");
      await this.copy(code?.textContent ?? message.content, button);
    }
  }

  /** `target` as a link has it. */
  async saveWritten({ mentions = [] }, target) {
    const file = mentions.find(({ name }) => target === name || target === encodeURIComponent(name) || target === encodeURI(name));
    if (file) await this.written.save(file);
    else this.toast.show("The server named no such file of this answer.");
  }

  async rate(answer, rating) {
    const { conversation } = this.chat;
    try {
      await this.feedback.rate(answer, rating, this.memory.user);
    } catch (error) {
      if (!(error instanceof ChatError)) throw error;
      this.toast.show(`The rating did not reach the server: ${error.message}`);
      return;
    }
    this.chat.keepRating(conversation, answer, rating);
  }

  async copy(text, button) {
    if (!(await copyText(text))) {
      this.toast.show("The browser did not allow copying.");
      return;
    }
    const use = button.querySelector("use");
    use.setAttribute("href", "#icon-check");
    this.announcer.say("Copied");
    setTimeout(() => use.setAttribute("href", "#icon-copy"), COPIED_MS);
  }

  export(conversation) {
    downloadJson(conversation.title, conversation);
  }

  delete(id) {
    this.chat.stop(id);
    const conversation = this.store.delete(id);
    if (id === this.chat.conversation.id) this.newChat();
    this.composer.focus();
    this.toast.show(`Deleted “${conversation.title}”.`, {
      label: "Undo",
      run: () => {
        this.store.save(conversation);
        this.navigate(id);
      },
    });
  }
}

new Page().start();
