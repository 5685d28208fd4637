// Everything drawn once, and again whenever the state changes.

function redraw() {
  showBudget();
  showTable();
  showSentence();
  showGallery();
  for (const draw of redraws) draw();
}

for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    const text = button.parentElement.querySelector("code").textContent;
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch { button.textContent = "Select and copy"; }
    setTimeout(() => { button.textContent = "Copy"; }, 1600);
  });
}
budget();
robustness();
gallery();
classes();
spectra();
gradients();
training();
setEpsilon(first);
