// A classic script, so that it runs before the first paint: the chat page's choice of theme is this page's too.
{
  const theme = localStorage.getItem("weft.theme");
  if (theme) document.documentElement.dataset.theme = theme;
}
