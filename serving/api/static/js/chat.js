// The conversation that is open, and the answers on their way. An answer goes on while another conversation is read.

import {
  assistantMessage, interruptedAnswer, lastUserIndex, newConversation, requestMessages, titleFor, userMessage,
} from "./conversation.js";
import { Turn } from "./turn.js";

/** Emits "open" when another conversation is shown and "unreachable" when an answer failed for want of a server. */
export class Chat extends EventTarget {
  #apis;
  #tools;
  #library;
  #store;
  #settings;
  #picker;
  #composer;
  #transcript;
  #announcer;
  #welcome;
  #turns = new Map(); // conversation id -> the Turn that runs in it
  #conversation = newConversation();

  /** `apis` are those that an answer may come by, `completions` and `responses`. */
  constructor({ apis, tools, library, store, settings, picker, composer, transcript, announcer, welcome }) {
    super();
    this.#apis = apis;
    this.#tools = tools;
    this.#library = library;
    this.#store = store;
    this.#settings = settings;
    this.#picker = picker;
    this.#composer = composer;
    this.#transcript = transcript;
    this.#announcer = announcer;
    this.#welcome = welcome;
    // What came so far is kept, with the place where the rest can be taken up.
    addEventListener("pagehide", () => this.#turns.forEach((turn) => store.save(turn.conversation)));
  }

  get conversation() {
    return this.#conversation;
  }

  get #turn() {
    return this.#turns.get(this.#conversation.id) ?? null;
  }

  open(conversation) {
    if (conversation === this.#conversation) return;
    this.#conversation = conversation;
    this.#composer.clear();
    this.#refresh();
  }

  /** Goes on with the answers that were on their way when the page was left. */
  resume() {
    for (const conversation of this.#store.list()) {
      const answer = interruptedAnswer(conversation);
      if (answer && !this.#turns.has(conversation.id)) {
        const api = Object.values(this.#apis).find(({ kind }) => kind === answer.stream.kind) ?? this.#apis.completions;
        this.#run(new Turn(api, null, conversation, answer));
      }
    }
  }

  /** Takes up what another tab did to the open conversation. */
  followStore() {
    const stored = this.#store.get(this.#conversation.id);
    if (stored && !this.#turn) this.open(stored);
  }

  /** Asks `text`; where the last question is being edited, instead of it. */
  async send(text) {
    await this.#requireModel();
    if (this.#turn) return;
    const conversation = this.#conversation;
    if (this.#composer.editing) conversation.messages.length = lastUserIndex(conversation);
    conversation.messages.push(userMessage(text));
    conversation.title ||= titleFor(text);
    this.#composer.clear();
    await this.#library.settled();
    await this.#answer(conversation);
  }

  /** Asks the last question again; what was answered to it goes. */
  async regenerate() {
    await this.#requireModel();
    if (this.#turn) return;
    const conversation = this.#conversation;
    conversation.messages.length = lastUserIndex(conversation) + 1;
    await this.#answer(conversation);
  }

  editLast() {
    const index = lastUserIndex(this.#conversation);
    if (index >= 0 && !this.#turn) this.#composer.edit(this.#conversation.messages[index].content);
  }

  stop(id = this.#conversation.id) {
    this.#turns.get(id)?.stop();
  }

  // The list may have failed to load when the page did.
  async #requireModel() {
    if (!this.#picker.model) await this.#picker.load();
  }

  async #answer(conversation) {
    const { model } = this.#picker;
    const tools = [...this.#tools.chosen, ...this.#library.tools(conversation)];
    const request = {
      model: model || undefined, // left out, it is the one that the server has
      messages: requestMessages(conversation, this.#settings.get("system_prompt")),
      ...this.#settings.sampling(),
      ...(tools.length > 0 && { tools }),
    };
    const answer = assistantMessage(model);
    const turn = new Turn(tools.length > 0 ? this.#apis.responses : this.#apis.completions, request, conversation, answer);
    conversation.messages.push(answer);
    conversation.updated = Date.now();
    this.#store.save(conversation);
    this.#transcript.scrollToLatest();
    this.#announcer.say("Answering");
    await this.#run(turn);
  }

  async #run(turn) {
    const { conversation } = turn;
    this.#turns.set(conversation.id, turn);
    this.#refresh();
    try {
      await turn.run(() => this.#conversation === conversation && this.#transcript.schedule(), {
        opened: () => this.#store.save(conversation),
        lost: () => this.dispatchEvent(new Event("unreachable")),
      });
    } finally {
      this.#finish(turn);
    }
  }

  #finish({ conversation, answer }) {
    this.#turns.delete(conversation.id);
    conversation.updated = Date.now();
    if (this.#store.get(conversation.id)) this.#store.save(conversation); // it may have been deleted meanwhile
    if (this.#conversation === conversation) {
      this.#transcript.finish();
      this.#refresh();
    }
    if (answer.error?.status === 0) this.dispatchEvent(new Event("unreachable"));
  }

  #refresh() {
    this.#welcome.hidden = this.#conversation.messages.length > 0;
    this.#composer.answering = this.#turn !== null;
    this.#transcript.show(this.#conversation, this.#turn);
    this.#library.show(this.#conversation);
    this.dispatchEvent(new Event("open"));
  }
}
