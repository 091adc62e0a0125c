// The search ranks pages that explain before those that list or record, and first the page that is named like a word of
// the query. The numbers below `score` are Sphinx's defaults.
const ASKED = (new URLSearchParams(location.search).get("q") ?? "").toLowerCase().split(/\W+/);
const FACTORS = [
  [/^changelog$/, 0.05],
  [/^(benchmarks|releasing|contributing|compiler_alone)$/, 0.3],
  [/^(design|compiler_operators)$/, 0.5],
  [/^reference\//, 1],
  [/./, 1.5],
];

var Scorer = {
  score: ([docName, , , , score]) =>
    score * FACTORS.find(([names]) => names.test(docName))[1] + (ASKED.includes(docName) ? 10 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
