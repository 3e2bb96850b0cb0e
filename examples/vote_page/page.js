// The recommender: ten random films, ranked by the weights that the service gave; the best is shown.
"use strict";
(() => {
  const names = ["comedy", "drama", "action", "romance", "science", "music"];
  const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
  const film = () => Object.fromEntries(names.map((name) => [name, normal()]));
  const score = (one, weights) => names.reduce((sum, name) => sum + one[name] * weights[name], 0);

  document.getElementById("vote").addEventListener("blindstep:show", (event) => {
    event.preventDefault();  // drawn here: the page need not be loaded again
    const weights = event.detail.parameters;
    const best = Array.from({ length: 10 }, film).sort((a, b) => score(b, weights) - score(a, weights))[0];
    const strongest = names.slice().sort((a, b) => best[b] - best[a]);
    document.getElementById("title").textContent = `A film with ${strongest[0]} and ${strongest[1]}`;
    const list = document.getElementById("features");
    list.replaceChildren();
    for (const name of names) {
      const term = document.createElement("dt");
      const value = document.createElement("dd");
      const meter = document.createElement("meter");
      term.textContent = name;
      Object.assign(meter, { min: -3, max: 3, value: best[name] });
      meter.setAttribute("aria-label", name);
      value.append(meter);
      list.append(term, value);
    }
  });
})();
