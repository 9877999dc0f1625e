// Evaluated in the page: the texts in view whose contrast is under WCAG AA, each with its ratio.
async () => {
  // Colours that are on their way to another theme's are neither's.
  const changes = document.getAnimations().filter((animation) => animation instanceof CSSTransition);
  await Promise.allSettled(changes.map(({ finished }) => finished));
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (colour) => {
    const [r, g, b] = rgba(colour).slice(0, 3).map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const groundOf = (node) => {
    const ground = getComputedStyle(node).backgroundColor;
    return rgba(ground)[3] === 255 ? ground : groundOf(node.parentElement);
  };
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement;
    if (!text.data.trim() || node.closest(".visually-hidden, noscript, :disabled") || !node.checkVisibility()) continue;
    const [light, dark] = [luminance(getComputedStyle(node).color), luminance(groundOf(node))].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    if (ratio < 4.5) faint.push(`${text.data.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return faint;
}
