// Images with what is proved of them, and what fools the network. A picture that is pressed is shown enlarged.

const withGallery = runs.map((run, index) => [run, index]).filter(([run]) => run.gallery && run.gallery.length);

function gallery() {
  if (!withGallery.length) return;
  byId("gallery").hidden = false;
  choose(byId("gallery"), withGallery, fillGallery);
}

/** Buttons for one network of several; `fill` shows the one that is chosen. */
function choose(section, known, fill) {
  const buttons = known.map(([run, index]) => {
    const button = element("button", { type: "button", className: colour(index) }, element("span", { className: "swatch" }), run.name);
    button.addEventListener("click", () => show(index));
    return [button, index];
  });
  const show = (shown) => {
    for (const [button, index] of buttons) button.ariaPressed = String(index === shown);
    fill(shown);
  };
  if (known.length > 1) section.querySelector(".choice").append(...buttons.map(([button]) => button));
  show(known[0][1]);
}

function picture(source, caption, alt) {
  const button = element("button", { type: "button", className: "zoom", title: "Enlarge" }, element("img", { src: source, alt }));
  button.addEventListener("click", () => enlarge(source, alt));
  return element("figure", {}, button, element("figcaption", {}, caption));
}

function enlarge(source, alt) {
  const dialog = byId("large");
  dialog.replaceChildren(element("img", { src: source, alt }), element("p", {}, alt), element("button", { type: "button" }, "Close"));
  dialog.onclick = () => dialog.close();
  dialog.showModal();
}

function fillGallery(shown) {
  state.shown = shown;
  const run = runs[shown], list = document.querySelector("ul.gallery");
  list.replaceChildren(...run.gallery.map((entry, k) => {
    const label = run.classes[entry.label], predicted = run.classes[entry.prediction], other = entry.adversarial;
    const pictures = element("div", { className: "images" },
      picture(entry.image, label, `Test image ${entry.index}, class ${label}, classified as ${predicted}`));
    if (other) {
      pictures.append(
        picture(other.change, "change", `The perturbation, enlarged; grey is no change`),
        picture(other.image, "→ " + run.classes[other.prediction],
          `The image perturbed by ${short(other.norm)}, classified as ${run.classes[other.prediction]}`));
    }
    const card = element("li", { className: colour(state.shown) }, pictures, element("p", { className: "verdict" }),
      element("span", { className: "gauge", ariaHidden: "true" }), element("p", { className: "facts" }));
    card.dataset.entry = k;
    return card;
  }));
  showGallery();
}

function verdict(entry) {
  if (entry.prediction !== entry.label) return ["fooled", "✗ misclassified"];
  if (state.epsilon === 0 || entry.radius >= state.epsilon) return ["proved", "✓ certified at ε"];
  if (entry.adversarial && entry.adversarial.norm <= state.epsilon) return ["fooled", "✗ broken at ε"];
  return ["unknown", "? unknown at ε"];
}

function showGallery() {
  if (!withGallery.length) return;
  const run = runs[state.shown];
  const end = Math.max(largest, ...run.gallery.map((entry) => (entry.adversarial ? entry.adversarial.norm * 1.02 : 0)));
  for (const card of document.querySelectorAll("ul.gallery li")) {
    const entry = run.gallery[Number(card.dataset.entry)], other = entry.adversarial;
    const [kind, words] = verdict(entry);
    const right = entry.prediction === entry.label;
    card.classList.toggle("open", kind !== "proved");
    const line = card.querySelector(".verdict");
    line.className = "verdict " + kind;
    line.textContent = words;
    const share = (value) => (100 * Math.min(value, end)) / end;
    const gauge = card.querySelector(".gauge");
    gauge.replaceChildren();
    gauge.hidden = !right;
    if (right) {
      const proved = share(entry.radius);
      gauge.append(place(element("span", { className: "unknown" }), proved, (other ? share(other.norm) : 100) - proved));
      gauge.append(place(element("span", { className: "proved" }), 0, proved));
    }
    gauge.append(place(element("span", { className: "tick" }), share(state.epsilon)));
    const lines = (right
      ? [entry.radius > 0 ? "certified within " + floored(entry.radius) : "not certified",
        other ? "broken at " + other.norm.toFixed(3) : "no adversarial example found"]
      : [`${run.classes[entry.prediction]} instead of ${run.classes[entry.label]}`]).concat(entry.file || []);
    card.querySelector(".facts").replaceChildren(...lines.map((text) => element("span", {}, text)));
  }
}
