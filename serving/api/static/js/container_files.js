// Files that programs left at the server. They are fetched, because a link would not carry the page's key.

import { ChatError } from "./api_client.js";
import { downloadBlob } from "./download.js";

const PICTURES = ["image/png", "image/jpeg", "image/webp"]; // as the server tells them by their content
const MOST_SHOWN = 4 << 20; // bytes of a picture

export class ContainerFiles {
  #client;
  #failed;

  /** `failed(sentence)` is called where a file cannot be saved. */
  constructor(client, failed) {
    this.#client = client;
    this.#failed = failed;
  }

  isPicture({ type, bytes }) {
    return PICTURES.includes(type) && bytes <= MOST_SHOWN;
  }

  async save(file) {
    try {
      downloadBlob(file.name, await this.#blob(file));
    } catch (error) {
      if (!(error instanceof ChatError)) throw error;
      const gone = error.status === 404;
      this.#failed(gone ? `${file.name} is no longer on the server.` : `${file.name}: ${error.message}`);
    }
  }

  /** The picture as a URL that the page may show; null where it cannot be had. */
  async picture(file) {
    try {
      return await dataUrl(new Blob([await this.#blob(file)], { type: file.type }));
    } catch (error) {
      if (!(error instanceof ChatError)) throw error;
      return null;
    }
  }

  async #blob({ container, id }) {
    const path = `/v1/containers/${encodeURIComponent(container)}/files/${encodeURIComponent(id)}/content`;
    return (await this.#client.fetch(path, { cache: "no-store" })).blob();
  }
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(blob);
  });
}
