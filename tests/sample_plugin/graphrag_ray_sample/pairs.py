"""An export format: pairs of related entities, one per line."""

from graphrag_ray.export.exporters import Exporter


def write(snapshot, output):
    lines = []
    for part in snapshot.reader.iter_batches("relationships", ["source", "target"]):
        lines += [f"{row['source']}\t{row['target']}\n" for row in part.to_pylist()]
    output.write("pairs.txt", "".join(lines))
    output.rows["pairs.txt"] = len(lines)
    return [] if lines else ["The index has no relationships"]


EXPORTER = Exporter(write, "pairs of related entities, one per line", files=("pairs.txt",))
