// Sets the formulas, which the extension arithmatex has marked.
for (const formula of document.querySelectorAll(".arithmatex")) {
  const [, open, tex] = formula.textContent.match(/^\\([([])([^]*)\\[)\]]$/);
  katex.render(tex, formula, { displayMode: open === "[", throwOnError: false });
}
