"""What must outlive the coordinator: tables, migrations, the group-committing writer and sealed secrets."""

from kernpool_coordinator.store.database import Store
from kernpool_coordinator.store.operations import Delete, Operation, Put, Run
from kernpool_coordinator.store.seal import Seal
from kernpool_coordinator.store.writer import GroupWriter, WriterStatistics

__all__ = ["Delete", "GroupWriter", "Operation", "Put", "Run", "Seal", "Store", "WriterStatistics"]
