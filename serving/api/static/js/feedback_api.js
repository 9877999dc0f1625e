// What the reader thinks of an answer: /v1/feedback. Raises ChatError where the server refuses.

export class FeedbackApi {
  #client;

  constructor(client) {
    this.#client = client;
  }

  /** `rating` is "up" or "down"; `user` is null where the page names nobody to the server. */
  async rate({ replyId, response }, rating, user) {
    await this.#client.post("/v1/feedback", { id: response ?? replyId, rating, ...(user && { user }) });
  }
}
