"""What the site shows beside its pages: gallery, notebooks, changelog, formulas, version.

Nothing is executed: notebooks are shown with the outputs that are stored in them. Formulas between
dollars become MathML, which browsers typeset by themselves: no script, and nothing is fetched.
"""

import contextlib
import io
import os
import re
import subprocess
import tomllib
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
FENCED = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r"(?P<around>\$\$?)(?=\S)(?P<tex>[^$]+)(?<=\S)(?P=around)")
# How much a page counts in the search. A word in a title counts 1,000 times as much as in the text.
BOOSTS = [
    (re.compile(r"notebooks/|decisions/|experiments|accelerators|benchmarks|papers"), 0.1),
    (re.compile(r"gallery/|changelog|api/|architecture|development"), 0.001),
    (re.compile(r"tutorial-"), 1),
    (re.compile(r""), 2),
]
HELP = re.compile(r"<!-- help: (.*) -->")
CELL = re.compile(r"<td.*?</td>", re.DOTALL)
CODE = re.compile(r"<code>[^<]*</code>")


def on_config(config):
    """Puts version and repository into the head."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.extra["version"] = project["version"]
    asked = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
    remote = subprocess.run(asked, capture_output=True, text=True).stdout
    config.repo_url = repository(remote.strip())
    return config


def repository(remote):
    """Where a reader finds the repository: its address, or how to build it where it has none."""
    address = re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", remote)
    return address.removesuffix(".git") if address.startswith("https://") else "development/"


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


def on_page_markdown(markdown, page, **_):
    """Typesets formulas; turns links that hold in the repository into links of the site."""
    boost = next(boost for pattern, boost in BOOSTS if pattern.match(page.file.src_uri))
    page.meta.setdefault("search", {"boost": boost})
    for pattern, place in MOVED:
        markdown = pattern.sub(place, markdown)
    markdown = _typeset(markdown)
    return HELP.sub(lambda found: _help(found[1].split()), markdown)


def on_post_page(output, **_):
    """Lets code in tables break after a space and, on a phone, after dots and underscores."""
    return CELL.sub(lambda cell: CODE.sub(_breakable, cell[0]), output)


def _breakable(code):
    # The style sheet hides the breaks without a class on wide screens.
    names = re.sub(r"([._])(?=\w)(?!py\b)", r"\1<wbr>", code[0])
    return names.replace(" ", ' <wbr class="space">')


def _converted(path):
    """The page of a notebook and its pictures: pairs of name and content."""
    names = {"unique_key": path.stem, "output_files_dir": path.stem}
    markdown, resources = MarkdownExporter().from_filename(str(path), resources=names)
    yield f"{path.stem}.md", markdown
    yield from resources["outputs"].items()


def _typeset(markdown):
    parts = FENCED.split(markdown)  # text, and code in every other place
    parts[::2] = [FORMULA.sub(_formula, part) for part in parts[::2]]
    return "".join(parts)


def _formula(found):
    """A formula in MathML. Markdown would end the paragraph at a line that began with <math>."""
    display = "block" if found["around"] == "$$" else "inline"
    return f"<span>{convert(found['tex'].strip(), display=display)}</span>"


def _help(words):
    """What ``--help`` prints for a command, as a block of text."""
    from dpjax.cli import main  # takes seconds, and is for one page

    os.environ["COLUMNS"] = "80"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*words[1:], "--help"])
    return f"```text\n{printed.getvalue()}```"
