// What is known of a network at a budget ε, and how far the axis of budgets goes; then the slider, the table, the sentence.

/** Percent of images proved right at ε; null where the run has no certified radii. */
function certifiedAt(run, epsilon) {
  if (run.clean === null) return null;
  if (epsilon === 0) return run.clean;
  if (run.radii === null) {
    const known = run.robust.find(([at]) => at === epsilon);
    return known ? known[1] : null;
  }
  let low = 0, high = run.radii.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (run.radii[middle] >= epsilon) high = middle; else low = middle + 1;
  }
  return (100 * (run.radii.length - low)) / run.images;
}

/** The strongest attack whose budget was at most ε: what it fooled, ε fools too. */
function attackedAt(run, epsilon) {
  const tried = run.attacks.filter((row) => row.epsilon <= epsilon * (1 + 1e-9) && row.epsilon > 0);
  const same = tried.filter((row) => row.images === run.images);
  return (same.length ? same : tried).reduce((best, row) => (best && best.accuracy <= row.accuracy ? best : row), null);
}

const budgets = [...new Set(runs.flatMap((run) => [...run.epsilons, ...run.attacks.map((row) => row.epsilon)]))]
  .filter((epsilon) => epsilon > 0).sort((a, b) => a - b);

/** Where the axis of budgets ends: behind nearly all radii and all budgets that were tried. */
const largest = (() => {
  const ends = runs.map((run) => (run.radii && run.radii.length ? run.radii[Math.max(0, run.radii.length - 1 - Math.floor(run.images / 200))] : 0));
  const end = Math.max(...ends, ...budgets.map((epsilon) => 1.05 * epsilon), 0.01);
  const step = niceStep(end, 6) / 2;
  return Math.ceil(end / step - 1e-9) * step;
})();

const usual = [...new Set(runs.flatMap((run) => run.epsilons))];
const first = usual.length ? usual[0] : largest / 2;
const slider = byId("epsilon"), number = byId("epsilon-number");

function budget() {
  slider.max = Math.min(3 * first, Math.max(1.5 * first, largest));  // the usual radius lies in the middle third
  slider.step = niceStep(slider.max, 400);
  slider.addEventListener("input", () => setEpsilon(Number(slider.value)));
  number.addEventListener("change", () => setEpsilon(Number(number.value)));
  for (const epsilon of (usual.length ? usual.toSorted((a, b) => a - b) : budgets).slice(0, 6)) {
    const button = element("button", { type: "button" }, budgetName(epsilon));
    button.addEventListener("click", () => setEpsilon(epsilon));
    button.dataset.epsilon = epsilon;
    byId("presets").append(button);
  }
}

function setEpsilon(epsilon) {
  if (!Number.isFinite(epsilon)) return;
  state.epsilon = Math.max(0, epsilon);
  redraw();
}

function showBudget() {
  if (Number(slider.value) !== state.epsilon) slider.value = state.epsilon;
  slider.setAttribute("aria-valuetext", "ε = " + short(state.epsilon));
  number.value = short(state.epsilon);
  for (const button of byId("presets").children) button.ariaPressed = String(Number(button.dataset.epsilon) === state.epsilon);
  byId("spread").textContent = spread();
  for (const at of document.querySelectorAll(".at")) at.textContent = "at ε = " + budgetName(state.epsilon);
}

/** What ε is if all pixels change alike. */
function spread() {
  const pixels = [...new Set(runs.map((run) => run.pixels))];
  const levels = (255 * state.epsilon) / Math.sqrt(pixels[0]);
  return pixels.length > 1 || !state.epsilon ? "" : `Spread evenly over all pixels, ε = ${budgetName(state.epsilon)} changes each by ${levels.toPrecision(2)} of 255 levels.`;
}

function showTable() {
  for (const row of document.querySelectorAll("tr.run")) {
    const run = runs[Number(row.dataset.run)];
    if (run.clean === null) continue;
    const proved = certifiedAt(run, state.epsilon), attack = attackedAt(run, state.epsilon);
    const cell = (name) => row.querySelector(`[data-cell="${name}"]`);
    cell("certified").textContent = proved === null ? "–" : percent(proved, run);
    const standing = attack === null ? run.clean : attack.accuracy;
    cell("attacked").replaceChildren(attack === null ? "–" : percent(attack.accuracy, run),
      attack === null ? "" : element("small", {}, `${attack.attack.toUpperCase()} at ${budgetName(attack.epsilon)}` +
        (attack.images === run.images ? "" : `, ${attack.images} images`)));
    const gauge = element("span", { className: "gauge" });
    if (proved !== null) {
      gauge.append(place(element("span", { className: "unknown" }), proved, standing - proved));
      gauge.append(place(element("span", { className: "proved" }), 0, proved));
    }
    gauge.append(place(element("span", { className: "tick" }), Math.min(99.4, run.clean)));
    cell("range").replaceChildren(gauge);
  }
}

function showSentence() {
  const ranked = runs.map((run) => [run, certifiedAt(run, state.epsilon)]).filter(([, proved]) => proved !== null)
    .sort((a, b) => b[1] - a[1]);
  const sentence = byId("sentence");
  if (!ranked.length) { sentence.textContent = "Nothing has been certified yet."; return; }
  const [run, proved] = ranked[0];
  const bold = (text) => element("strong", {}, text);
  const images = Math.round((proved * run.images) / 100).toLocaleString("en");
  const budget = bold("ε = " + budgetName(state.epsilon));
  if (state.epsilon === 0) {
    sentence.replaceChildren("Without a perturbation ", bold(run.name), " classifies ", bold(percent(proved, run)), " of the test images correctly.");
  } else if (proved === 0) {
    sentence.replaceChildren("At ", budget, " no image is certified.");
  } else {
    sentence.replaceChildren("At ", budget, ", ", bold(images + " of " + run.images.toLocaleString("en")), " test images are certified for ",
      bold(run.name), " (", bold(percent(proved, run)), "): no perturbation of at most ε changes their class.");
  }
}
