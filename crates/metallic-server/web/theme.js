// Runs before the page is painted, so that it does not flash in the other colours.
try {
  const theme = localStorage.getItem('metallic.theme');
  if (theme === 'dark' || theme === 'light') document.documentElement.dataset.theme = theme;
} catch {
  // No storage: the colours of the system.
}
