"""Reads dpjax's docstrings and dataclasses as the API pages need them; an extension of griffe."""

import re

import griffe

EXAMPLE = re.compile(r"^>>> ")
REMARK = re.compile(r"^Privacy: ")
REFERENCE = re.compile(r"^Reference: ")
CODE = re.compile(r"(``.*?``|`.*?`)")
DATACLASS = griffe.ExprName("dataclass", parent=griffe.ExprName("dataclasses"))
INHERITED = re.compile(r"^  the others: (.*(?:\n    .*)*)", re.MULTILINE)
FIELD = griffe.ExprName("field", parent=griffe.ExprName("dataclasses"))


class Docstrings(griffe.Extension):
    """Examples become code, privacy paragraphs boxes; pytree dataclasses and tuples have fields."""

    def on_object(self, *, obj, **_):
        """Rewrites the docstring of an object as Markdown."""
        if obj.docstring:
            value = obj.docstring.value
            obj.docstring.value = markdown(INHERITED.sub(_others, value))

    def on_class_instance(self, *, cls, **_):
        """Marks classes whose fields are the arguments of their constructor."""
        for decorator in cls.decorators:
            if str(decorator.value).startswith("pytree_dataclass"):
                arguments = getattr(decorator.value, "arguments", [])
                decorator.value = griffe.ExprCall(DATACLASS, arguments)
        if any(str(base).endswith("NamedTuple") for base in cls.bases):
            cls.decorators.append(griffe.Decorator(DATACLASS, lineno=None, endlineno=None))

    def on_attribute_instance(self, *, attr, **_):
        """Reads ``static()`` as the field that it returns, which has no default."""
        value = attr.value
        if isinstance(value, griffe.ExprCall) and str(value.function) == "static":
            required = griffe.ExprKeyword("init", "True")
            attr.value = griffe.ExprCall(FIELD, [required, *value.arguments])


def markdown(text):
    """Returns a docstring with its examples and remarks in the form that Markdown shows."""
    lines = []
    inside = None  # the last line that began at the left: an example, a remark, or other text
    for line in text.splitlines():
        if not line or line[0] == " ":
            kind = inside
        elif EXAMPLE.match(line) or inside == "example":
            kind = "example"
        else:
            kind = "remark" if REMARK.match(line) else "text"
        if kind != inside and kind == "example":
            lines.append("Examples:")
        if kind == "remark" and line and line[0] != " ":
            lines.append('!!! privacy "Privacy"')
            line = line.removeprefix("Privacy: ")
            line = line[0].upper() + line[1:]
        inside = kind if line else (None if kind == "example" else kind)
        indent = {"example": "    ", "remark": "    "}.get(kind, "")
        line = line.strip() if kind == "remark" else REFERENCE.sub("**Reference:** ", line)
        lines.append(indent + (line if kind == "example" else _escaped(line)) if line else "")
    return "\n".join(lines)


def _others(found):
    """The arguments of a class's bases, or of all factories, as a paragraph after its own."""
    return "\nOther arguments: " + " ".join(found[1].split())


def _escaped(line):
    """A line of text in which ``<v, w>`` is no HTML."""
    parts = CODE.split(line)
    parts[::2] = [part.replace("<", "&lt;") for part in parts[::2]]
    return "".join(parts)
