"""Drawing once for two outputs: the SVG of a page, and the pixels of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.backend_bases import GraphicsContextBase, RendererBase
from matplotlib.backends.backend_svg import RendererSVG
from matplotlib.transforms import Affine2D, TransformedPath

if TYPE_CHECKING:
    from typing import TextIO

    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.figure import Figure
    from matplotlib.path import Path
    from matplotlib.transforms import Transform

_POINTS = 72  # an inch of an SVG


class PanelRenderer(RendererSVG):
    """Writes a small figure as SVG, and paints it into its place of a larger picture on the way.

    Laying out text, ticks and lines takes most of the time of a drawing, and is done once for both. Lines, markers,
    areas and words are painted, which is all that a chart has; an image is refused.
    """

    def __init__(self, figure: Figure, file: TextIO, picture: RendererAgg | None, left: float, top: float) -> None:
        """An empty drawing of a figure of 72 dots an inch.

        Args:
            figure: what will be drawn.
            file: what the SVG is written to.
            picture: what is painted on; None: nothing is.
            left: inches from the picture's left edge to the figure's.
            top: inches from the picture's upper edge to the figure's.
        """
        wide, tall = figure.bbox.size
        super().__init__(wide, tall, file, metadata={"Date": None, "Creator": None})  # type: ignore[no-untyped-call]
        self._picture, self._left, self._top = picture, _POINTS * left, _POINTS * top
        self._scale = picture.dpi / _POINTS if picture is not None else 1.0
        below = 0.0 if picture is None else picture.height - self._scale * (self._top + tall)
        self._place = Affine2D().scale(self._scale).translate(self._scale * self._left, below)

    def draw_path(self, gc: GraphicsContextBase, path: Path, transform: Transform, rgbFace: Any = None) -> None:
        """A line or an area."""
        super().draw_path(gc, path, transform, rgbFace)  # type: ignore[no-untyped-call]
        if self._picture is not None:
            self._picture.draw_path(self._pen(gc), path, transform + self._place, rgbFace)

    def draw_markers(
        self,
        gc: GraphicsContextBase,
        marker_path: Path,
        marker_trans: Transform,
        path: Path,
        trans: Transform,
        rgbFace: Any = None,
    ) -> None:
        """A marker at each point of a path."""
        super().draw_markers(gc, marker_path, marker_trans, path, trans, rgbFace)  # type: ignore[no-untyped-call]
        if self._picture is not None:
            larger = marker_trans + Affine2D().scale(self._scale)
            self._picture.draw_markers(self._pen(gc), marker_path, larger, path, trans + self._place, rgbFace)

    def draw_path_collection(self, *arguments: Any, **named: Any) -> None:
        """Many paths: one by one."""
        RendererBase.draw_path_collection(self, *arguments, **named)

    def draw_text(
        self,
        gc: GraphicsContextBase,
        x: float,
        y: float,
        s: str,
        prop: Any,
        angle: float,
        ismath: Any = False,
        mtext: Any = None,
    ) -> None:
        """Words at a place counted from the upper left corner."""
        super().draw_text(gc, x, y, s, prop, angle, ismath, mtext)  # type: ignore[no-untyped-call]
        if self._picture is not None:
            at = self._scale * (x + self._left), self._scale * (y + self._top)
            self._picture.draw_text(self._pen(gc), *at, s, prop, angle, ismath, mtext)

    def draw_image(self, *_: Any, **__: Any) -> None:
        """Not part of any chart.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("a panel holds lines, markers, areas and words, no image")

    def _pen(self, gc: GraphicsContextBase) -> GraphicsContextBase:
        """What is drawn with, clipped to the same part of the picture; its widths and dashes are in points."""
        pen = GraphicsContextBase()
        pen.copy_properties(gc)
        if (box := gc.get_clip_rectangle()) is not None:
            pen.set_clip_rectangle(self._place.transform_bbox(box))
        path, transform = gc.get_clip_path()
        if path is not None and transform is not None:
            pen.set_clip_path(TransformedPath(path, transform + self._place))  # type: ignore[arg-type]  # it is a Path
        return pen
