// The budget, the table, the sentence.

const slider = byId("epsilon"), number = byId("epsilon-number");

function budget() {
  slider.max = largest;
  slider.step = niceStep(largest, 400);
  slider.addEventListener("input", () => setEpsilon(Number(slider.value)));
  number.addEventListener("change", () => setEpsilon(Number(number.value)));
  const usual = [...new Set(runs.flatMap((run) => run.epsilons))].sort((a, b) => a - b);
  for (const epsilon of (usual.length ? usual : budgets).slice(0, 6)) {
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
  for (const at of document.querySelectorAll(".at")) at.textContent = "at ε = " + budgetName(state.epsilon);
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
  if (state.epsilon === 0) {
    sentence.replaceChildren("With nothing changed, ", bold(run.name), " is right about ", bold(percent(proved, run)), " of the images.");
  } else if (proved === 0) {
    sentence.replaceChildren("At ", bold("ε = " + budgetName(state.epsilon)), " nothing is proved any more.");
  } else {
    sentence.replaceChildren("No change of an image by at most ", bold("ε = " + budgetName(state.epsilon)), " can mislead ", bold(run.name),
      " about ", bold(images + " of " + run.images.toLocaleString("en")), " test images: ", bold(percent(proved, run)), " is proved.");
  }
}
