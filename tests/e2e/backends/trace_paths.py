"""Which requests of a trace are parts of which."""


def model_paths(entries):
    """Of each request in the file of a trace, by id: its model, behind those of the requests that led to it, as `outer/inner`."""
    subjects = {entry["id"]: (entry["model_name"], entry.get("parent_id")) for entry in entries if "model_name" in entry}

    def path(name, parent):
        return f"{path(*subjects[parent])}/{name}" if parent is not None else name

    return {number: path(*subject) for number, subject in subjects.items()}
