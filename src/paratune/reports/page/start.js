
document.querySelectorAll("table[data-sortable]").forEach(makeSortable);
document.querySelectorAll("table").forEach(makeShort);
makeTips();
makeTheme();
makeSelection();
openForPrint();
