// Sets the formulas, which the extension arithmatex has marked.
for (const formula of document.querySelectorAll(".arithmatex")) {
  const [, open, tex] = formula.textContent.match(/^\\([([])([^]*)\\[)\]]$/);
  katex.render(tex, formula, { displayMode: open === "[", throwOnError: false });
}
// A browser breaks a line after the hyphens of an option, --size, too: short code stays on one line.
for (const code of document.querySelectorAll(".md-typeset :not(pre) > code")) {
  code.classList.toggle("short", code.textContent.length < 30);
}
// Nor does it break one within the options of a command.
for (const code of document.querySelectorAll(".language-sh pre > code")) {
  code.innerHTML = code.innerHTML.replace(/(?<![\w-])--[a-z][a-z-]*/g, '<span class="option">$&</span>');
}
// A type may be broken after a bracket, a path after a dot.
for (const name of document.querySelectorAll(":is(h2, h3) > .doc-object-name")) {
  name.innerHTML = name.innerHTML.replaceAll(".", ".<wbr>");
}
for (const code of document.querySelectorAll(".doc-section-item td:not(:first-child) > code")) {
  code.innerHTML = code.innerHTML.replace(/(?:[[(]|\.(?=[a-z]))(?![^<]*>)/g, "$&<wbr>");
}
// A number and its deviation stay on one line.
for (const cell of document.querySelectorAll(".md-typeset :is(td, td strong)")) {
  if (!cell.children.length) cell.textContent = cell.textContent.replace(/ ± /g, "\u00a0±\u00a0").replace(/ \/ /g, "\u00a0/ ");
}
