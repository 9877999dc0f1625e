// A classic script, so that it runs before the first paint: modules would show the other theme for a moment.
{
  const theme = localStorage.getItem("weft.theme");
  if (theme) document.documentElement.dataset.theme = theme;
}
