"""Figures as SVG inside the page, with a tooltip for each mark.

matplotlib writes one thing of an artist into the SVG as it is, its gid. `told` puts the tooltips there,
and `inline_svg` turns them into the <title> elements that browsers show. Every text is escaped by the
XML writers on both ways, and the page's policy lets no script run.
"""

import json
import re
from collections.abc import Sequence
from xml.etree import ElementTree

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from isoloss.report.drawing import as_svg

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
_MARK = "tooltips:"
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""Characters that XML cannot hold: matplotlib repeats the text it draws in a comment."""

ElementTree.register_namespace("", SVG.strip("{}"))
ElementTree.register_namespace("xlink", LINK.rpartition("}")[0].strip("{"))


def add_tooltips(artist: Artist, titles: Sequence[str]) -> None:
    """Give an artist one tooltip, or a line with markers one for each of its points."""
    artist.set_gid(_MARK + json.dumps([_NOT_XML.sub("", title) for title in titles]))


def inline_svg(figure: Figure, name: str) -> str:
    """The figure as an <svg> element. `name` keeps its ids apart from those of other figures."""
    root = ElementTree.fromstring(_NOT_XML.sub("", as_svg(figure).decode()))
    for metadata in root.findall(f"{SVG}metadata"):
        root.remove(metadata)
    for parent in list(root.iter()):
        identity = parent.get("id", "")
        if identity.startswith(_MARK):
            del parent.attrib["id"]
            _tell(parent, json.loads(identity.removeprefix(_MARK)))
    for element in root.iter():
        _rename(element, name)
    return ElementTree.tostring(root, encoding="unicode")


def _tell(group: ElementTree.Element, titles: Sequence[str]) -> None:
    """Put the titles into the group, or around its markers; markers off the canvas were not written."""
    if len(titles) == 1:
        group.set("class", "tip")
        group.insert(0, _title(titles[0]))
        return
    for parent in list(group.iter()):
        markers = parent.findall(f"{SVG}use")
        if len(markers) != len(titles):
            continue
        for marker, title in zip(markers, titles, strict=True):
            place = list(parent).index(marker)
            parent.remove(marker)
            around = ElementTree.Element(f"{SVG}g", {"class": "tip"})
            around.extend((_title(title), marker))
            parent.insert(place, around)


def _title(text: str) -> ElementTree.Element:
    element = ElementTree.Element(f"{SVG}title")
    element.text = text
    return element


def _rename(element: ElementTree.Element, name: str) -> None:
    """Prefix an element's id and its references to others."""
    for key, value in element.attrib.items():
        if key == "id":
            element.set(key, f"{name}-{value}")
        elif key == LINK and value.startswith("#"):
            element.set(key, f"#{name}-{value[1:]}")
        elif "url(#" in value:
            element.set(key, value.replace("url(#", f"url(#{name}-"))
