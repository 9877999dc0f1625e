// The composition root: builds the parts and lets them talk. The address says which conversation is open (#/c/ID).

import { Announcer } from "./announcer.js";
import { ChatApi } from "./chat_api.js";
import { copyText } from "./clipboard.js";
import { Composer } from "./composer.js";
import { Connection } from "./connection.js";
import { assistantMessage, lastUserIndex, newConversation, requestMessages, titleFor, userMessage } from "./conversation.js";
import { ConversationList } from "./conversation_list.js";
import { ConversationStore } from "./conversation_store.js";
import { downloadJson } from "./download.js";
import { ModelPicker } from "./model_picker.js";
import { Settings } from "./settings.js";
import { SettingsDialog } from "./settings_dialog.js";
import { listenForShortcuts } from "./shortcuts.js";
import { Sidebar } from "./sidebar.js";
import { Theme } from "./theme.js";
import { Toast } from "./toast.js";
import { Transcript } from "./transcript.js";
import { Turn } from "./turn.js";

const COPIED_MS = 1500;

const byId = (id) => document.getElementById(id);

class Page {
  settings = new Settings();
  store = new ConversationStore();
  api = new ChatApi(() => this.settings.apiKey);
  announcer = new Announcer(byId("announcements"));
  toast = new Toast(byId("toasts"));
  composer = new Composer(byId("composer"));
  picker = new ModelPicker(byId("model"), this.api, this.settings);
  connection = new Connection(byId("connection"), this.api);
  settingsDialog = new SettingsDialog(byId("settings"), this.settings);
  list = new ConversationList({ root: byId("conversations"), search: byId("search"), store: this.store });
  sidebar = new Sidebar({
    sidebar: byId("sidebar"), main: byId("main"), toggle: byId("sidebar-toggle"), backdrop: byId("backdrop"),
    close: byId("sidebar-close"),
  });
  transcript = new Transcript({
    scroller: byId("scroller"), list: byId("transcript"), jump: byId("jump"), announcer: this.announcer,
    onaction: (name, message, button) => this.actOn(name, message, button),
  });
  turns = new Map(); // conversation id -> the Turn that runs in it
  conversation = newConversation();

  start() {
    new Theme(byId("theme"));
    this.listenToParts();
    this.listenToButtons();
    this.openFromAddress();
    this.picker.load();
    this.connection.check();
    this.composer.focus();
  }

  listenToParts() {
    this.composer.addEventListener("send", ({ detail }) => this.send(detail));
    this.composer.addEventListener("stop", () => this.turn?.stop());
    this.composer.addEventListener("cancel", () => this.composer.clear());
    this.composer.addEventListener("editlast", () => this.editLast());
    this.list.addEventListener("open", ({ detail }) => this.navigate(detail));
    this.list.addEventListener("rename", ({ detail }) => this.store.rename(detail.id, detail.title));
    this.list.addEventListener("export", ({ detail }) => this.export(this.store.get(detail)));
    this.list.addEventListener("delete", ({ detail }) => this.delete(detail));
    this.store.addEventListener("change", () => this.refreshTitle());
    this.store.addEventListener("full", () => {
      this.toast.show("The browser's storage is full: this chat will not survive a reload. Delete or export old ones.");
    });
    this.settings.addEventListener("change", () => this.refreshSettingsBadge());
    this.settings.addEventListener("key", () => this.picker.load());
    this.connection.addEventListener("ready", () => this.picker.model || this.picker.load());
    addEventListener("hashchange", () => this.openFromAddress());
    addEventListener("pagehide", () => this.turns.forEach((turn) => this.store.save(turn.conversation)));
  }

  listenToButtons() {
    const onclick = (id, action) => byId(id).addEventListener("click", action);
    onclick("new-chat", () => this.newChat());
    onclick("new-chat-top", () => this.newChat());
    onclick("open-settings", () => this.settingsDialog.open());
    onclick("open-help", () => byId("help").showModal());
    onclick("close-help", () => byId("help").close());
    onclick("export-all", () => downloadJson("weft-conversations", this.store.list()));
    onclick("skip", (event) => {
      event.preventDefault(); // the address names the conversation
      this.composer.focus();
    });
    byId("examples").addEventListener("click", ({ target }) => {
      const example = target.closest("button");
      if (example) this.send(example.dataset.prompt);
    });
    listenForShortcuts({
      newChat: () => this.newChat(),
      focusBox: () => this.composer.focus(),
      help: () => byId("help").showModal(),
      escape: () => this.escape(),
    });
    this.refreshSettingsBadge();
  }

  get turn() {
    return this.turns.get(this.conversation.id) ?? null;
  }

  // -- which conversation is open

  openFromAddress() {
    const id = /^#\/c\/(.+)$/.exec(location.hash)?.[1];
    this.open(this.store.get(id) ?? newConversation());
  }

  navigate(id) {
    location.hash = `#/c/${id}`;
    this.sidebar.closeDrawer();
    this.composer.focus();
  }

  newChat() {
    location.hash = "#/";
    this.sidebar.closeDrawer();
    if (this.conversation.messages.length > 0) this.open(newConversation());
    this.composer.focus();
  }

  open(conversation) {
    if (conversation.id === this.conversation.id && conversation.messages.length > 0) return;
    this.conversation = conversation;
    this.composer.clear();
    this.refresh();
  }

  refresh() {
    byId("welcome").hidden = this.conversation.messages.length > 0;
    this.composer.answering = this.turn !== null;
    this.transcript.show(this.conversation, this.turn);
    this.list.currentId = this.conversation.id;
    this.refreshTitle();
  }

  refreshTitle() {
    document.title = this.conversation.title ? `${this.conversation.title} · weft` : "weft";
  }

  refreshSettingsBadge() {
    const count = this.settings.changedCount;
    const badge = byId("settings-count");
    badge.hidden = count === 0;
    badge.textContent = count;
    const name = count === 0 ? "Settings" : `Settings, ${count} changed`;
    byId("open-settings").setAttribute("aria-label", name);
  }

  // -- asking and answering

  async send(text) {
    if (this.turn) return;
    const { conversation } = this;
    if (this.composer.editing) conversation.messages.length = lastUserIndex(conversation);
    conversation.messages.push(userMessage(text));
    conversation.title ||= titleFor(text);
    this.composer.clear();
    this.composer.focus();
    this.transcript.scrollToLatest();
    await this.answer(conversation);
  }

  async answer(conversation) {
    if (!this.picker.model) await this.picker.load();
    const request = {
      model: this.picker.model,
      messages: requestMessages(conversation, this.settings.get("system_prompt")),
      ...this.settings.sampling(),
    };
    const answer = assistantMessage(this.picker.model);
    conversation.messages.push(answer);
    conversation.updated = Date.now();
    const turn = new Turn(this.api, request, conversation, answer);
    this.turns.set(conversation.id, turn);
    this.store.save(conversation);
    history.replaceState(null, "", `#/c/${conversation.id}`);
    this.refresh();
    this.announcer.say("Answering");
    try {
      await turn.run(() => this.conversation === conversation && this.transcript.schedule());
    } finally {
      this.finish(turn);
    }
  }

  finish(turn) {
    const { conversation, answer } = turn;
    this.turns.delete(conversation.id);
    conversation.updated = Date.now();
    if (this.store.get(conversation.id)) this.store.save(conversation);
    if (this.conversation === conversation) {
      this.transcript.finish();
      this.refresh();
    }
    if (answer.error?.status === 0) this.connection.check();
  }

  regenerate() {
    if (this.turn) return;
    this.conversation.messages.length = lastUserIndex(this.conversation) + 1;
    this.transcript.scrollToLatest();
    this.answer(this.conversation);
    this.composer.focus();
  }

  editLast() {
    const index = lastUserIndex(this.conversation);
    if (index >= 0 && !this.turn) this.composer.edit(this.conversation.messages[index].content);
  }

  escape() {
    if (this.sidebar.closeDrawer()) return;
    if (this.turn) this.turn.stop();
    else if (this.composer.editing) this.composer.clear();
    this.composer.focus();
  }

  // -- what the buttons of messages and rows do

  async actOn(name, message, button) {
    if (name === "edit") this.editLast();
    else if (name === "regenerate") this.regenerate();
    else if (name === "copy") await this.copy(message.content, button);
    else await this.copy(button.closest(".code-block").querySelector("code").textContent, button);
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
    this.turns.get(id)?.stop();
    const conversation = this.store.delete(id);
    if (id === this.conversation.id) this.newChat();
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
