// The conversation that is open, and the answers on their way. An answer goes on while another conversation is read.

import { append, messageOf, pathOf, pathTo, remove, show, versionsOf } from "./branches.js";
import {
  assistantMessage, interruptedAnswer, isEmptyFailure, lastQuestion, newConversation, previousOf, requestMessages, titleFor,
  userMessage,
} from "./conversation.js";
import { Turn } from "./turn.js";

/** Emits "open" when another conversation is shown and "unreachable" when an answer failed for want of a server. */
export class Chat extends EventTarget {
  #apis;
  #tools;
  #library;
  #memory;
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
  constructor({ apis, tools, library, memory, store, settings, picker, composer, transcript, announcer, welcome }) {
    super();
    this.#apis = apis;
    this.#tools = tools;
    this.#library = library;
    this.#memory = memory;
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
    this.#endEdit();
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

  /** Asks `text`; where a question is being edited, beside it: both keep what followed them. */
  async send(text) {
    await this.#requireModel();
    if (this.#turn) return;
    const conversation = this.#conversation;
    const edited = this.#composer.edited;
    const question = userMessage(text);
    append(conversation, question, edited ? messageOf(conversation, edited.parent) : pathOf(conversation).at(-1));
    conversation.title ||= titleFor(text);
    this.#endEdit();
    await this.#library.settled();
    await this.#answer(conversation, question);
  }

  /** Asks for another answer beside this one; one that failed with nothing said is replaced. */
  async regenerate(answer) {
    await this.#requireModel();
    await this.#library.settled();
    if (this.#turn) return;
    const conversation = this.#conversation;
    const question = messageOf(conversation, answer.parent);
    if (isEmptyFailure(answer)) remove(conversation, answer);
    await this.#answer(conversation, question);
  }

  /** Puts a question of one's own into the box again: this one, that of this answer, or the last. */
  edit(message = lastQuestion(this.#conversation)) {
    if (!message || this.#turn) return;
    const question = message.role === "assistant" ? messageOf(this.#conversation, message.parent) : message;
    this.#composer.edit(question);
    this.#transcript.mark(question);
  }

  cancelEdit() {
    const { edited } = this.#composer;
    this.#endEdit();
    if (edited === lastQuestion(this.#conversation)) this.#composer.focus();
    else if (edited) this.#transcript.focusOn(edited, "edit");
  }

  /** Shows the version before (-1) or after (1) this one of a message, and the branch that goes on from it. */
  switchVersion(message, step) {
    const conversation = this.#conversation;
    const versions = versionsOf(conversation, message);
    const other = versions[versions.indexOf(message) + step];
    if (!other || this.#turn) return;
    show(conversation, other);
    this.#endEdit();
    this.#transcript.switchTo(message, other, step);
    this.#announcer.say(`Version ${versions.indexOf(other) + 1} of ${versions.length}`);
    this.#store.save(conversation);
  }

  /** Shows the branch that a message is in. */
  reveal(conversation, message) {
    if (this.#turns.has(conversation.id)) return;
    show(conversation, message);
    this.#store.save(conversation);
    if (conversation === this.#conversation) this.#refresh();
  }

  /** Keeps what the reader thinks of an answer. */
  keepRating(conversation, answer, rating) {
    answer.rating = rating;
    if (this.#store.get(conversation.id)) this.#store.save(conversation);
    if (conversation === this.#conversation) this.#transcript.show(conversation, this.#turn);
  }

  stop(id = this.#conversation.id) {
    this.#turns.get(id)?.stop();
  }

  // The list may have failed to load when the page did.
  async #requireModel() {
    if (!this.#picker.model) await this.#picker.load();
  }

  #endEdit() {
    this.#composer.clear();
    this.#transcript.mark(null);
  }

  async #answer(conversation, question) {
    const { model } = this.#picker;
    const path = pathTo(conversation, question);
    const tools = [...this.#tools.chosen, ...this.#library.tools(conversation)];
    const { user } = this.#memory;
    const isTurn = tools.length > 0 || user !== null; // what only the server's turns have
    const request = {
      model: model || undefined, // left out, it is the one that the server has
      messages: requestMessages(path, this.#settings.get("system_prompt")),
      ...this.#settings.sampling(),
      ...(tools.length > 0 && { tools }),
      ...(user && { user }),
      ...(isTurn && { previous: previousOf(path) }),
    };
    const answer = assistantMessage(model);
    const turn = new Turn(isTurn ? this.#apis.responses : this.#apis.completions, request, conversation, answer);
    append(conversation, answer, question);
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
