// What a network gets wrong: accuracy by class, the confusion matrix, the misclassified images.

const MATRIX = 30;  // classes; a larger matrix cannot be read

function classes() {
  const known = runs.map((run, index) => [run, index]).filter(([run]) => run.mistake_count !== null);
  if (!known.length) return;
  byId("classes").hidden = false;
  choose(byId("classes"), known, fillClasses);
}

function fillClasses(shown) {
  const run = runs[shown], section = byId("classes");
  const cell = (tag, text, more) => element(tag, more, text);
  const row = (...cells) => element("tr", {}, ...cells);
  const counts = run.confusion.map((line) => line.reduce((a, b) => a + b, 0));
  const rows = counts.map((count, k) => [run.classes[k], count, count ? (100 * run.confusion[k][k]) / count : 0]).filter(([, count]) => count);
  section.querySelector(".pair").className = "pair " + colour(shown);
  section.querySelector(".pair").hidden = !rows.length;
  section.querySelector(".matrix").hidden = run.classes.length > MATRIX;
  section.querySelector(".classes").replaceChildren(
    row(cell("th", "class"), cell("th", "images"), cell("th", "correct"), cell("th", "0 to 100 %")),
    ...rows.sort((a, b) => a[2] - b[2]).map(([name, count, share]) => row(cell("th", name, { scope: "row" }), cell("td", String(count)),
      cell("td", percent(share)), cell("td", element("span", { className: "gauge", ariaHidden: "true" }, place(element("span", { className: "proved" }), 0, share))))));
  if (run.classes.length <= MATRIX) {
    section.querySelector(".matrix table").className = run.classes.some((name) => name.length > 3) ? "long" : "";
    section.querySelector(".matrix table").replaceChildren(
      row(cell("td", ""), ...run.classes.map((name) => cell("th", name, { scope: "col" }))),
      ...run.confusion.map((line, k) => row(cell("th", run.classes[k], { scope: "row" }), ...line.map((count, j) => {
        const entry = cell("td", count ? String(count) : "·", { title: `${count} of ${counts[k]}: ${run.classes[k]} taken for ${run.classes[j]}`, className: k === j ? "right" : "wrong" });
        entry.style.setProperty("--share", counts[k] ? Math.sqrt(count / counts[k]) : 0);
        return entry;
      }))));
  }
  const all = run.mistake_count, some = run.mistakes.length;
  section.querySelector(".count").textContent = all === 0 ? "No mistakes" : some < all ? `${some} of ${all} mistakes, those with the largest radii` : `${all} mistake${all > 1 ? "s" : ""}`;
  section.querySelector(".mistakes").replaceChildren(...run.mistakes.map((entry) => {
    const [label, prediction] = [run.classes[entry.label], run.classes[entry.prediction]];
    const alt = `Test image ${entry.index}${entry.file ? ", " + entry.file : ""}: ${label}, classified as ${prediction}, radius ${floored(entry.radius)}`;
    return element("li", {}, picture(entry.image, `${label} → ${prediction}, ${floored(entry.radius)}`, alt));
  }));
}
