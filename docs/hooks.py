"""What the site shows from other folders: the papers' gallery, executed notebooks, changelog.

Nothing is executed: notebooks are shown with the outputs that are stored in them.
"""

import contextlib
import io
import os
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.structure.files import File
from nbconvert import MarkdownExporter

ROOT = Path(__file__).parents[1]
# Where a page of docs links to in the repository, and where the site has it.
MOVED = [
    (re.compile(r"\]\(\.\./benchmarks/gallery/"), "](gallery/"),
    (re.compile(r"\]\(\.\./notebooks/(\w+)\.ipynb"), r"](notebooks/\1.md"),
    (re.compile(r"\]\(\.\./CHANGELOG\.md"), "](changelog.md"),
]
# A picture leads to itself, so that it can be seen in full.
PICTURE = re.compile(r"^!\[(.*)\]\((\S+\.png)\)$", re.MULTILINE)
FENCED = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r"\$([^$]+)\$")
HELP = re.compile(r"<!-- help: (.*) -->")
CELL = re.compile(r"<td.*?</td>", re.DOTALL)
CODE = re.compile(r"<code>[^<]*</code>")


def on_files(files, config):
    """Adds pages and pictures from outside of docs."""
    gallery = ROOT / "benchmarks" / "gallery"
    for path in sorted([*gallery.glob("*/*.md"), *gallery.glob("*/*.png")]):
        uri = f"gallery/{path.relative_to(gallery).as_posix()}"
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for name, content in _converted(path):
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    changelog = str(ROOT / "CHANGELOG.md")
    files.append(File.generated(config, "changelog.md", abs_src_path=changelog))
    return files


def on_page_markdown(markdown, **_):
    """Turns links that hold in the repository into links that hold in the site."""
    for pattern, place in MOVED:
        markdown = pattern.sub(place, markdown)
    markdown = PICTURE.sub(r"[![\1](\2)](\2)", markdown)
    return HELP.sub(lambda found: _help(found[1].split()), markdown)


def on_post_page(output, **_):
    """Lets code in tables break after a space and, on a phone, after dots and underscores."""
    return CELL.sub(lambda cell: CODE.sub(_breakable, cell[0]), output)


def _breakable(code):
    # The style sheet hides the breaks without a class on wide screens.
    names = re.sub(r"([._])(?=\w)(?!py\b)", r"\1<wbr>", code[0])
    return names.replace(" ", ' <wbr class="space">')


def _converted(path):
    """The page of a notebook and its pictures: pairs of name and content.

    Browsers show the formulas of MathML by themselves.
    """
    names = {"unique_key": path.stem, "output_files_dir": path.stem}
    markdown, resources = MarkdownExporter().from_filename(str(path), resources=names)
    parts = FENCED.split(markdown)  # text, and code in every other place
    parts[::2] = [FORMULA.sub(_formula, part) for part in parts[::2]]
    yield f"{path.stem}.md", "".join(parts)
    yield from resources["outputs"].items()


def _formula(found):
    """A formula in MathML. Markdown would end the paragraph at a line that began with <math>."""
    return f"<span>{convert(found[1])}</span>"


def _help(words):
    """What ``--help`` prints for a command, as a block of text."""
    from dpjax.cli import main  # takes seconds, and is for one page

    os.environ["COLUMNS"] = "80"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*words[1:], "--help"])
    return f"```text\n{printed.getvalue()}```"
