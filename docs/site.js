// what the theme makes in the browser: what scrolls takes the focus, landmarks have names of their own
function mend() {
  document.querySelectorAll(".md-typeset__scrollwrap").forEach((box) => { box.tabIndex = 0; });
  document.querySelectorAll("nav.md-code__nav").forEach((nav, place) => nav.setAttribute("aria-label", `Code ${place + 1}`));
  document.querySelectorAll("nav.md-nav[aria-labelledby]").forEach((nav) => {
    const title = nav.querySelector(":scope > .md-nav__title");
    if (title) { nav.removeAttribute("aria-labelledby"); nav.setAttribute("aria-label", `Pages of ${title.textContent.trim()}`); }
  });
}
new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
mend();
