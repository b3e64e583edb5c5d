// Which page is shown: all runs, one run, or several side by side.
import { $ } from "./dom.js";
import { list } from "./list.js";
import { run } from "./run.js";
import { compare } from "./compare.js";

let leave = () => {};

function route() {
  leave();
  const [, kind, rest] = location.hash.split("/");
  const page = $("page");
  if (kind === "run") leave = run(page, rest);
  else if (kind === "compare") leave = compare(page, rest.split(","));
  else leave = list(page);
  if (kind) page.focus();
}

addEventListener("hashchange", route);
route();
