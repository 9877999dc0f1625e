// Numbers as people read them.

/** 0.0123 -> "12 ms", 2.5 -> "2.5 s", null -> a dash. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.01) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  return seconds < 10 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds)} s`;
}

/** 12345 -> "12,345"; small ones keep a decimal. */
export function count(value) {
  if (value === null || value === undefined) return "–";
  return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
}

/** 93784 -> "1 d 2 h": the two largest units. */
export function span(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const parts = [];
  let left = Math.max(0, Math.floor(seconds));
  for (const [name, size] of units) {
    const value = Math.floor(left / size);
    left -= value * size;
    if (value || (name === "s" && !parts.length)) parts.push(`${value} ${name}`);
  }
  return parts.slice(0, 2).join(" ");
}

/** "queue_too_long" -> "queue too long". */
export const words = (code) => code.replaceAll("_", " ");
