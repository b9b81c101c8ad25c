"""Ways in which a loader crops images, and a slow reference of where a row's pixels come from."""

from __future__ import annotations

from hypothesis import strategies as st

from loaders.decode.crop import RandomCrop, RowView, evaluation_view, row_view, train_views


@st.composite
def row_views(draw: st.DrawFn, max_side: int, max_size: int) -> RowView:
    """How a loader crops an image of any size, for training or for an evaluation."""
    height, width = draw(st.integers(1, max_side)), draw(st.integers(1, max_side))
    size = draw(st.integers(1, max_size))
    if draw(st.booleans()):
        crop = RandomCrop(scale=(0.05, 1.0))
        (view,) = train_views(
            draw(st.integers(0, 999)), [draw(st.integers(0, 999))], [height], [width], size=size, crop=crop
        )
    else:
        view = evaluation_view(height, width, size=size, resize=draw(st.integers(size, 2 * size)))
    return row_view(view, height, width, size)


def source_of(view: RowView, row: int, column: int) -> tuple[float, float]:
    """Where the middle of a pixel of a row comes from in the image, as x and y: a loader's steps undone one by one."""
    x, y = column + 0.5, row + 0.5
    if view.flip:
        x = view.size - x
    x, y = x + view.out_left, y + view.out_top
    x, y = x / view.resized_width * view.width, y / view.resized_height * view.height
    return x + view.left, y + view.top
