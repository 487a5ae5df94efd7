"""The import contract that import-linter lacks: a package is a registry, and its entries know nothing of each other."""

from grimp import ImportGraph
from importlinter import ContractCheck, fields
from importlinter.contracts.independence import IndependenceContract
from importlinter.domain.imports import ModuleExpression


class EntriesContract(IndependenceContract):
    """Independence of a package's public modules, whichever these are: a new entry is under contract by existing.

    Modules whose name starts with an underscore are helpers, which entries share.
    """

    type_name = "entries"

    modules = fields.SetField(subfield=fields.ModuleExpressionField(), required=False)
    package = fields.StringField()

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Find the entries in the import graph, then check their independence."""
        children = graph.find_children(str(self.package))
        entries = {name for name in children if not name.rpartition(".")[2].startswith("_")}
        self.modules = {ModuleExpression(name) for name in entries}  # pyright: ignore[reportAttributeAccessIssue]
        return super().check(graph, verbose)
