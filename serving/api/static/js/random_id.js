// crypto.randomUUID exists only on https and localhost; a server in the next room is neither.
export function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => byte.toString(36).padStart(2, "0")).join("");
}
