// What is known of a network at a budget ε, and how far the axis of budgets goes.

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
