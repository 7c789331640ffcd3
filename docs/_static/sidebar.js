// Each caption of the sidebar folds its pages away, but for the section of the page that is open.
document.addEventListener("DOMContentLoaded", () => {
  const captions = [...document.querySelectorAll(".sidebar-tree > .caption")];
  const here = captions.find((each) => each.nextElementSibling?.querySelector(".current-page")) ?? captions[0];
  for (const caption of captions) {
    const pages = caption.nextElementSibling;
    const show = (open) => {
      pages.hidden = !open;
      caption.setAttribute("aria-expanded", open);
    };
    caption.setAttribute("role", "button");
    caption.tabIndex = 0;
    caption.addEventListener("click", () => show(pages.hidden));
    caption.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        show(pages.hidden);
      }
    });
    show(caption === here);
  }
});
