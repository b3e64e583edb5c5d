// Several runs on the same axes, and where their job files differ.
import { ask, inOrder, make, number, stateOf, tell, wide } from "./dom.js";
import { Chart, controls } from "./charts.js";

export function compare(page, ids) {
  const settings = { smooth: 0, log: false };
  const charts = make("div", { className: "charts" });
  const drawn = [];
  const best = make("tbody"), differences = wide("Differences");
  page.replaceChildren(make("h1", { textContent: "Compare" }), wide("Runs", make("table", {}, best)),
    make("h2", { textContent: "Curves" }), controls(settings, drawn), charts,
    make("h2", { textContent: "Settings that differ" }), differences);
  (async () => {
    const runs = await Promise.all(ids.map((id) => ask(`/api/runs/${id}`)));
    best.replaceChildren(...runs.map((run) => make("tr", {}, make("th", { scope: "row" }, make("a", { href: `#/run/${run.id}`, textContent: run.name })),
      make("td", {}, stateOf(run.state)), make("td", { textContent: run.target }),
      ...Object.entries(run.report?.metrics ?? {}).slice(0, 6).map(([name, value]) => make("td", { textContent: `${name} ${number(value)}` })))));
    for (const name of inOrder(new Set(runs.flatMap((run) => run.metrics)))) {
      const chart = new Chart(name, runs.filter((run) => run.metrics.includes(name)), settings);
      drawn.push(chart);
      charts.append(chart.node);
      chart.load();
    }
    const rows = await ask(`/api/compare?${new URLSearchParams(ids.map((id) => ["run", id]))}`);
    differences.replaceChildren(rows.length ? make("table", {},
      make("thead", {}, make("tr", {}, make("th", { textContent: "setting", scope: "col" }), ...runs.map((run) => make("th", { textContent: run.name, scope: "col" })))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, make("th", { textContent: row.key, scope: "row" }),
        ...row.values.map((value) => make("td", { className: "wrap", textContent: value === null || value === undefined ? "–" : JSON.stringify(value) })))))
    ) : make("p", { textContent: "The runs have the same settings." }));
    tell("");
  })().catch((error) => tell(error.message, true));
  const resized = () => drawn.forEach((chart) => chart.resize());
  addEventListener("resize", resized);
  return () => removeEventListener("resize", resized);
}
