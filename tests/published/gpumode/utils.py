def make_match_reference(reference, **tolerances):
    def check(data, output):
        return True, ""

    return check
